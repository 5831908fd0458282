# -*- test-case-name: tests.broker.admin.test_damaged_records -*-
"""A master reports its damaged records, and takes sound copies from hosts whose slaves it accepts."""

from __future__ import annotations

import json

from twisted.internet.address import IPv4Address
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.admin.damaged_records import GET_DAMAGED_RECORDS, OFFER_RECORD, DamagedRecords
from protocols.wire.remoting import RemotingCommand
from tests.broker.asked import Asked
from tests.broker.support import log_bytes, message, messages_in

LOG = "base/commitlog"


class DamagedRecordsTests(SynchronousTestCase):
    """A master with ten messages, one of which is damaged."""

    def setUp(self) -> None:
        self.asked = Asked()
        self.addCleanup(self.asked.close)
        self.asked.groups = [DamagedRecords(self.asked.ha, self.asked.store)]
        self.client = self.client_at("127.0.0.1")
        for number in range(10):
            self.asked.append(message(b"%d" % number * 50))
        self.content = log_bytes(self.asked.store.log)
        self.offset = messages_in(self.asked.store.log)[4].physical_offset
        size = int.from_bytes(self.content[self.offset : self.offset + 4], "big")
        self.copy = self.content[self.offset : self.offset + size]
        self.asked.disk.files[f"{LOG}/{0:020d}"].data[self.offset + 95] ^= 1

    def client_at(self, host: str) -> object:
        """A connection from that host."""
        client = self.asked.client()
        client.transport.peerAddr = IPv4Address("TCP", host, 7)
        client.transport.hostAddr = IPv4Address("TCP", "10.0.0.1", 10911)
        return client

    def ask(self, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
        """One request."""
        answer: RemotingCommand = self.client.ask(code, fields, body)  # type: ignore[attr-defined]
        return answer

    def test_reported(self) -> None:
        """The offsets that are known."""
        self.assertEqual(json.loads(self.ask(GET_DAMAGED_RECORDS).body), {"offsets": []})
        self.asked.store.bad_records.note(self.offset, "why")
        self.assertEqual(json.loads(self.ask(GET_DAMAGED_RECORDS).body), {"offsets": [self.offset]})

    def test_taken(self) -> None:
        """The log is whole again, and the record is no longer among the damaged ones."""
        self.asked.store.bad_records.note(self.offset, "why")
        answer = self.ask(OFFER_RECORD, self.copy, offset=self.offset)
        self.assertEqual(json.loads(answer.body), {"kept": f"{LOG}.damaged/{self.offset:020d}"})
        self.assertEqual(log_bytes(self.asked.store.log), self.content)
        self.assertEqual(json.loads(self.ask(GET_DAMAGED_RECORDS).body), {"offsets": []})

    def test_refused(self) -> None:
        """With the reason: a sound record, a bad offset, none."""
        answer = self.ask(OFFER_RECORD, self.copy, offset=0)
        self.assertIn("not one sound record", answer.remark or "")
        for fields in ({"offset": -1}, {"offset": "x"}, {}):
            self.assertEqual(self.ask(OFFER_RECORD, self.copy, **fields).code, 1)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_strangers(self) -> None:
        """Only hosts whose slaves are accepted get answers, or are heard."""
        self.client = self.client_at("10.9.9.9")
        for answer in (self.ask(GET_DAMAGED_RECORDS), self.ask(OFFER_RECORD, self.copy, offset=self.offset)):
            self.assertEqual(answer.code, 16)
            self.assertIn("ha_allowed_hosts", answer.remark or "")
        self.assertNotEqual(log_bytes(self.asked.store.log), self.content)

    def test_slave(self) -> None:
        """A slave takes no copies: its master sends it the log."""
        slave = Asked(is_slave=True)
        self.addCleanup(slave.close)
        slave.groups = [DamagedRecords(slave.ha, slave.store)]
        for code in (GET_DAMAGED_RECORDS, OFFER_RECORD):
            self.assertIn("is a slave", slave.client().ask(code, {"offset": 0}).remark or "")
