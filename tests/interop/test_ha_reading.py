# -*- test-case-name: tests.interop.test_ha_reading -*-
"""The checks of the stories of masters and slaves notice faults. Without Java."""

from __future__ import annotations

import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.rocketmq.message import encode_message, make_message
from tests.interop.ha import FILE_SIZE, BrokerError, Sent, check_stored, differing, log_bytes
from tests.interop.ha_story import ha_lines, outcomes
from tests.interop.rocketmq import body_of


class ReadingTests(SynchronousTestCase):
    """Each check with sound input, and with wrong input."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.store = Path(held.name)
        (self.store / "commitlog").mkdir()

    def write(self, start: int, data: bytes) -> Path:
        """A file of a commit log."""
        path = self.store / "commitlog" / f"{start:020}"
        path.write_bytes(data.ljust(FILE_SIZE, b"\0"))
        return path

    def test_stored(self) -> None:
        """A message is at its offset, with its body, queue and queue offset; any difference is found."""
        record = encode_message(make_message(
            "t", body_of(7), queue_id=2, queue_offset=5, physical_offset=FILE_SIZE + 100
        ))
        path = self.write(FILE_SIZE, bytes(100) + record)
        sent = Sent(number=7, status="SEND_OK", queue_id=2, queue_offset=5,
                    message_id="7F00000100002A9F" + f"{FILE_SIZE + 100:016X}")
        self.assertEqual(check_stored(self.store, sent, "t"), "")
        for wrong in (
            {"number": 8}, {"queue_id": 1}, {"queue_offset": 4}, {"message_id": "0" * 32},
            {"message_id": "0" * 16 + f"{FILE_SIZE:016X}"},
        ):
            other = Sent(**{**{"number": 7, "status": "SEND_OK", "queue_id": 2, "queue_offset": 5,
                               "message_id": sent.message_id}, **wrong})  # type: ignore[arg-type]
            self.assertNotEqual(check_stored(self.store, other, "t"), "", wrong)
        self.assertNotEqual(check_stored(self.store, sent, "u"), "")
        path.write_bytes(path.read_bytes().replace(b"0123", b"0124", 1))
        self.assertNotEqual(check_stored(self.store, sent, "t"), "")

    def test_log(self) -> None:
        """Bytes across files; a file that is missing, or too short."""
        self.write(0, b"a" * FILE_SIZE)
        second = self.write(FILE_SIZE, b"bcd")
        self.assertEqual(log_bytes(self.store, FILE_SIZE - 2, FILE_SIZE + 3), b"aabcd")
        self.assertRaises(BrokerError, log_bytes, self.store, 0, FILE_SIZE * 2 + 1)
        second.write_bytes(b"bcd")
        self.assertRaises(BrokerError, log_bytes, self.store, 0, FILE_SIZE + 1)

    def test_outcomes(self) -> None:
        """A line that is being written is not read yet."""
        path = self.store / "outcomes"
        self.assertEqual(outcomes(path), [])
        path.write_text("3/SEND_OK/1/2/7F000001000073420000000000000100\n4/FAILED:why/-1/-1/\n5/SEND_O")
        first, second = outcomes(path)
        self.assertEqual((first.number, first.status, first.offset), (3, "SEND_OK", 256))
        self.assertEqual((second.number, second.status), (4, "FAILED:why"))

    def test_metadata(self) -> None:
        """A wrong value, a missing entry and an extra one differ; fields that the master omits may differ."""
        reported = {"subscriptionGroup": {"g": {"groupName": "g", "brokerId": 0}}, "delayOffset": {"1": 4}}
        kept = {"subscriptionGroup": {"g": {"groupName": "g", "brokerId": 0, "groupSysFlag": 0}},
                "delayOffset": {"1": 4}}
        self.assertEqual(differing(reported, kept), [])
        for name, value in (
            ("delayOffset", {"1": 3}), ("delayOffset", {}), ("delayOffset", "no file"),
            ("subscriptionGroup", {}), ("subscriptionGroup", {"g": {"groupName": "g", "brokerId": 1}}),
            ("subscriptionGroup", {**kept["subscriptionGroup"], "h": {"groupName": "h"}}),
        ):
            self.assertEqual([one[0] for one in differing(reported, {**kept, name: value})], [name])

    def test_status(self) -> None:
        """mqadmin's log lines and the speed are ignored, the rest is not."""
        row = "127.0.0.1:4000  300 0 {} OK 300"
        said = f"16:15:14 |-INFO of logging\n16:15 more\n\n#SlaveNum\t1\n#SlaveAddr x\n{row.format('1.50')}\n"
        self.assertEqual(ha_lines(said), ha_lines(said.replace("1.50", "0.00")))
        self.assertEqual(len(ha_lines(said)), 3)
        self.assertNotEqual(ha_lines(said), ha_lines(said.replace("300 0", "299 1")))
