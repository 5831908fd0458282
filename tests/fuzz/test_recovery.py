# -*- test-case-name: tests.fuzz.test_recovery -*-
"""The fuzzing of recovery: a short run, damage that it found before, and its ability to find errors."""

from __future__ import annotations

import random
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.store.file_store import FileStore
from tests.fuzz import recovery
from tests.fuzz.recovery import entries_of, fuzz_recovery, make_template
from tests.fuzz.run import chance_of

#: Seeds that found errors before: a lone entry with a wrong index, a damaged blank, a size below
#: that of a header, an index beyond 64 bits, a chain broken where reading began; holes beside a
#: record that nothing vouches for, after one whose checksums were wiped out, and across a missing index
#: file.
FOUND = (838, 176, 1452, 6399, 10703, 14384, 10831, 88099, 85678, 81897, 89119, 10500, 16710, 19362,
         22416, 57124, 58498)


class FuzzTests(SynchronousTestCase):
    """Damage of all kinds."""

    def test_short_run(self) -> None:
        """After any damage there is a store or a clear refusal."""
        for seed in range(400):
            fuzz_recovery(random.Random(seed))

    def test_what_it_found(self) -> None:
        """Errors found before stay fixed."""
        for seed in FOUND:
            fuzz_recovery(random.Random(seed))
        # The first record's term and chain wiped out, the mark gone: it looked like a directory of Java's.
        fuzz_recovery(chance_of(5, 243700))

    def test_templates(self) -> None:
        """The templates have all kinds of directories, and undamaged ones open whole."""
        kinds = set()
        for seed in range(40):
            template = make_template(seed)
            store = FileStore.open(recovery.CONFIG, template.disk)
            self.assertEqual(entries_of(store), template.entries)
            self.assertEqual(store.repair_end_index, -1)
            kinds.add((template.has_checksums, store.ledger_begin_index > 0, bool(template.entries)))
            store.abandon()
        self.assertGreaterEqual(len(kinds), 4)

    def fails_somewhere(self, count: int = 3000) -> bool:
        """Whether a run fails."""
        for seed in range(count):
            try:
                fuzz_recovery(random.Random(seed))
            except AssertionError:
                return True
        return False

    def test_it_would_notice(self) -> None:
        """A recovery that forgets lost entries, or never cuts, is caught."""
        with mock.patch("dledger.storage.files.commit_mark.CommitMark.recorded_end_index", -1):
            self.assertTrue(self.fails_somewhere())
        with (
            mock.patch("dledger.storage.start.directory.cut_behind", lambda *_, is_damaged: None),
            mock.patch.object(recovery, "DAMAGES", (recovery._delete,)),  # Others show it seldom.
        ):
            self.assertTrue(self.fails_somewhere())
