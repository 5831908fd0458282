# -*- test-case-name: tests.interop.test_readers -*-
"""Named readers in a group with a Java member, which follows, and leads in between."""

from __future__ import annotations

import tempfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import dledger
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.interop.java import JavaMissing, class_path
from tests.interop.mixed import JAVA, OURS, MixedGroup
from tests.interop.test_mixed_groups import bodies
from tests.processes.children import peers_text

#: Seconds that one call may take on a busy machine.
LONG_S = 60.0


class MixedReaderTests(SynchronousTestCase):
    """Two members of ours, and a Java member."""

    def test_java_in_between(self) -> None:
        """Java stores reader entries as any other; while it leads, readers are refused, and then go on."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        group = MixedGroup(Path(held.name), (OURS, OURS, JAVA))
        self.addCleanup(group.kill)
        group.start()
        group.lead("n0")
        group.append(*bodies("before", 6))
        with dledger.connect(peers_text(group.peers), group.name, timeout=LONG_S) as log:
            with log.reader("billing") as reader:
                for entry in reader:
                    if entry.body.startswith(b"before 3;"):
                        break
                place = reader.commit()
                group.lead("n2")
                group.append(*bodies("under java", 6))
                with self.assertRaisesRegex(DLedgerError, "n2 keeps no readers") as caught:
                    reader.commit(place)
                self.assertIs(caught.exception.code, ResponseCode.UNSUPPORTED)
                group.lead("n1")
            (info,) = log.readers()
            self.assertEqual((info.name, info.next_index), ("billing", place))
            with log.reader("billing", follow=False) as reader:
                found = [entry.body.split(b";")[0] for entry in reader if entry.body.endswith(b".")]
                reader.commit()
        expected = [b"before 4", b"before 5", *(b"under java %d" % number for number in range(6))]
        self.assertEqual(found, expected)
        group.check()
