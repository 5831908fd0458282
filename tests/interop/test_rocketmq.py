# -*- test-case-name: tests.interop.test_rocketmq -*-
"""Two real RocketMQ brokers in DLedger mode, and our member as the third vote, which never leads."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from protocols.wire.rocketmq_message import decode_entry_body, encode_message
from tests.interop.java import JavaMissing
from tests.interop.rocketmq import OURS, TOPIC, BrokerGroup, Sent, body_of, class_path

#: Messages sent in each part of the story.
MESSAGES = 150


class BrokerTests(SynchronousTestCase):
    """Producers and consumers notice nothing; our files are the brokers' files; our commands read them."""

    def group_of(self, version: str, **broker: object) -> BrokerGroup:
        """A started group that is ended after the test."""
        try:
            class_path(version)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        group = BrokerGroup(Path(held.name), version, broker=broker)
        self.addCleanup(group.kill)
        group.start()
        group.messages.start()
        group.messages.wait_started()
        return group

    def test_5_3_3(self) -> None:
        """The present release."""
        self.play(self.group_of("5.3.3"))

    def test_4_9_8(self) -> None:
        """The last of the releases before 5, its leaders pushing batches."""
        self.play(self.group_of("4.9.8", enableBatchPush=True))

    def play(self, group: BrokerGroup) -> None:
        """Each member is lost once, and messages go on; then everything is compared."""
        first = group.leader()
        self.assertIn(first, group.brokers)
        self.send_and_receive(group)

        # The broker that leads is killed: without our vote and our acknowledgements nothing could go on.
        group.brokers[first].kill()
        self.send_and_receive(group)
        second = group.leader()
        self.assertEqual(set(group.running()), {second, OURS})
        self.assertNotEqual(second, OURS)
        group.brokers[first].start()
        group.brokers[first].wait_started()

        # We are killed, and miss something.
        group.ours.kill()
        self.send_and_receive(group)
        group.ours.start()
        self.send_and_receive(group)

        end_index = group.check()
        self.assertGreater(len(list((group.ledger_path(OURS) / "data").iterdir())), 2)
        self.check_records(group, end_index)
        self.check_tail(group, end_index)
        group.stop()
        for peer_id in group.peers:
            said = json.loads(group.command("verify", "--json", str(group.ledger_path(peer_id))))
            self.assertEqual((said["is_clean"], said["end_index"]), (True, end_index), said)

    def send_and_receive(self, group: BrokerGroup) -> None:
        """More messages; the consumer sees all that were sent so far, as they were sent."""
        group.send(MESSAGES)
        self.assertEqual(group.messages.received(len(group.sent)), (len(group.sent), 0))

    def check_records(self, group: BrokerGroup, end_index: int) -> None:
        """What the brokers wrote, our codec reads, and would write byte for byte."""
        for record in group.records(end_index):
            self.assertEqual(encode_message(decode_entry_body(record.body, record.pos)), record.body)

    def check_tail(self, group: BrokerGroup, end_index: int) -> None:
        """C{dledger tail --format rocketmq} shows every message that was sent, every field as it was."""
        lines = group.command("tail", "--from", "0", "--format", "rocketmq", "--json").splitlines()
        documents = [json.loads(line) for line in lines]
        self.assertEqual([document["index"] for document in documents], list(range(end_index + 1)))
        self.assertEqual({document["kind"] for document in documents}, {"message"})
        found = {document["message_id"]: document for document in documents if document["topic"] == TOPIC}
        for number, sent in group.sent.items():
            self.assertEqual(number, sent.number)
            self.check_message(sent, found[sent.message_id])
        lines = group.command("tail", "-n", "3", "--format", "rocketmq").splitlines()
        self.assertEqual([line.split("\t")[0] for line in lines],
                         [f"index={index}" for index in range(end_index - 2, end_index + 1)])  # fmt: skip

    def check_message(self, sent: Sent, document: dict[str, Any]) -> None:
        """One of those that the producer was told to be stored."""
        body = body_of(sent.number)
        shown = {name: document[name] for name in ("queue_id", "queue_offset", "unique_key", "tags", "keys",
                                                   "body", "compression")}  # fmt: skip
        self.assertEqual(shown, {
            "queue_id": sent.queue_id, "queue_offset": sent.queue_offset, "unique_key": sent.unique_key,
            "tags": "odd" if sent.number % 2 else "even", "keys": [f"k{sent.number}", "all"],
            "body": body.decode(), "compression": "zlib" if len(body) > 2000 else "none",
        })  # fmt: skip
        self.assertEqual(document["properties"]["number"], str(sent.number))
