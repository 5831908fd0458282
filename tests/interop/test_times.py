# -*- test-case-name: tests.interop.test_times -*-
"""Times of entries in a group with a Java member, which follows, and leads in between."""

from __future__ import annotations

import tempfile
from itertools import groupby, pairwise
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import dledger
from dledger.client.values import Entry
from tests.interop.java import JavaMissing, class_path
from tests.interop.mixed import JAVA, OURS, MixedGroup
from tests.interop.test_mixed_groups import bodies
from tests.processes.children import peers_text

#: Seconds that one call may take on a busy machine.
LONG_S = 60.0


class MixedTimesTests(SynchronousTestCase):
    """Two members of ours, and a Java member."""

    def test_java_in_between(self) -> None:
        """Java keeps time entries as any other. While it leads, entries have no time; then times go on."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        group = MixedGroup(Path(held.name), (OURS, OURS, JAVA), ours={"entry_times_ms": 1})
        self.addCleanup(group.kill)
        group.start()
        for member_id in ("n0", "n2", "n1"):
            group.lead(member_id)
            group.append(*bodies(f"under {member_id}", 6))
        with dledger.connect(peers_text(group.peers), group.name, timeout=LONG_S) as log:
            entries = [entry for entry in log.tail(0, follow=False) if entry.body.endswith(b".")]
            again = [entry for entry in log.tail(entries[8].index, follow=False) if entry.body.endswith(b".")]
            got = [log.get(entries[at].index) for at in (2, 8, 17)]
        self.assertEqual(again, entries[8:], "a tail that begins in the middle")
        self.assertEqual(got, [entries[at] for at in (2, 8, 17)])
        self.assertEqual([who for who, _ in groupby(map(leader_of, entries))], [b"n0", b"n2", b"n1"])
        for entry in entries:
            self.assertIs(entry.time is None, leader_of(entry) == b"n2", entry)
        times = [entry.time for entry in entries if entry.time is not None]
        self.assertTrue(all(one <= other for one, other in pairwise(times)), times)
        group.check()


def leader_of(entry: Entry) -> bytes:
    """The member that led when a body was appended."""
    return entry.body.split()[1]
