# -*- test-case-name: tests.interop.test_rocketmq -*-
"""
RocketMQ's own classes against our codec; two real brokers in DLedger mode, and our member as the third vote.
"""

from __future__ import annotations

import base64
import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import attrs
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import SysFlag
from protocols.wire.rocketmq.message import (
    BatchItem,
    Host,
    Message,
    decode_batch,
    decode_entry_body,
    decode_message,
    decode_properties,
    encode_batch,
    encode_message,
    java_hash,
    make_message,
    plain_body,
)
from tests.interop.java import JavaMissing
from tests.interop.rocketmq import OURS, PATIENCE, TOPIC, BrokerGroup, Codec, Sent, body_of, class_path
from tests.processes.children import wait_until

#: Messages sent in each part of the story.
MESSAGES = 150


#: Texts of properties, sound and malformed.
PROPERTIES = (
    b"", b"a\x01b", b"a\x01b\x02", b"a\x01b\x02c\x01d", b"a\x01\x02b\x01c\x02", b"\x01a\x02b\x01c\x02",
    b"a\x02\x02\x02", b"a\x01b\x01c\x02d\x01e", b"a\x011\x02a\x012\x02", b" \x01 \x02", b"\0" * 9,
    "größe\x01ü\U0001f600\x02".encode(), b"\x01\x01\x02a\x01\x01", b"a\x01" + b"x" * 2000,
)

_SMALL, _LARGE = b"hello", b"hello " * 500


def shapes() -> list[Message]:
    """Messages that differ in every field that affects the layout."""
    found = []
    for version in (1, 2):
        for born in ("10.1.2.3", "2001:db8::1"):
            for store in ("192.0.2.200", "fe80::2"):
                found.append(make_message(
                    "topic" if version == 1 else "t" * 200, _SMALL, version=version, queue_id=3, flag=-5,
                    queue_offset=1 << 40, born_timestamp=1700000000123, born_host=Host.of(born, 40001),
                    store_timestamp=1700000000456, store_host=Host.of(store, 10911), reconsume_times=2,
                    prepared_transaction_offset=1 << 33, properties={"TAGS": "ä", "KEYS": "k1 k2"},
                ))
    found.append(make_message("größe", zlib.compress(_LARGE), sys_flag=SysFlag.COMPRESSED | SysFlag.COMMIT))
    return found


class CodecTests(SynchronousTestCase):
    """RocketMQ's own classes read our messages, and write those that we read."""

    def java(self, main: str, version: str) -> Codec:
        """A started process, ended after the test."""
        try:
            class_path(version)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        codec = Codec(main, Path(held.name), version)
        self.addCleanup(codec.kill)
        codec.start()
        codec.wait_started(seconds=PATIENCE)
        return codec

    def test_java_reads_ours(self) -> None:
        """Every field is read alike; 4.9 does not know version 2 (and reads it wrongly)."""
        for version, highest in (("5.3.3", 2), ("4.9.8", 1)):
            codec = self.java("Codec", version)
            known = [message for message in shapes() if message.version <= highest]
            self.assertGreater(len(known), 4)
            for message in known:
                said = codec.said_of("message", encode_message(message)).split(" ")
                # 5.x clears the flag of compression when it has unpacked the body.
                said[7] = str(int(said[7]) | message.sys_flag & SysFlag.COMPRESSED)
                self.assertEqual(said, fields_of(message), version)

    def test_java_refuses_what_we_refuse(self) -> None:
        """Records that are cut are refused by both."""
        record = encode_message(shapes()[0])
        codec = self.java("Codec", "5.3.3")
        for damaged in (record[:-1], record[:90], record[:40]):
            self.assertRaises(WireError, decode_message, damaged)
            self.assertEqual(codec.said_of("message", damaged), "none")

    def test_java_writes_ours(self) -> None:
        """The encoder of a 5.3.3 broker makes the same bytes for every shape."""
        encoder = self.java("Encoder", "5.3.3")
        for message in shapes():
            record = encode_message(message)
            said = base64.b64decode(encoder.said_of(record, message.properties_data))
            self.assertEqual(said.hex(), record.hex())

    def test_properties(self) -> None:
        """Names and values are read alike, of sound texts and of malformed ones."""
        codec = self.java("Codec", "5.3.3")
        for text in PROPERTIES:
            self.assertEqual(codec.said_of("properties", text), pairs(decode_properties(text)), text)

    def test_batches_and_hashes(self) -> None:
        """Batch bodies are written as Java writes them; texts have Java's hash."""
        codec = self.java("Codec", "4.9.8")
        batch = encode_batch([
            BatchItem(flag=1, body=b"hello", properties_data=b"a\x01b"),
            BatchItem(flag=-1, body=b"x" * 300, properties_data=b"TAGS\x01A"),
        ])
        again = base64.b64decode(codec.said_of("batch", batch))
        self.assertEqual([attrs.evolve(item, properties_data=item.properties_data.rstrip(b"\2"))
                          for item in decode_batch(again)], decode_batch(batch))
        for text in ("", "A", "TagA", "größe", "\U0001f600", "polygenelubricants", "x" * 1000):
            self.assertEqual(int(codec.said_of("hash", text.encode())), java_hash(text), text)


def pairs(properties: dict[str, str]) -> str:
    """The properties in the form of C{Codec.java}."""
    text = "".join(f"{name}\3{value}\4" for name, value in sorted(properties.items()))
    return base64.b64encode(text.encode()).decode()


def fields_of(message: Message) -> list[str]:
    """The fields of a record in the form of C{Codec.java}."""

    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    def host(found: Host) -> str:
        return f"{text(found.address)}/{found.port}"

    numbers = (message.body_crc, message.queue_id, message.flag, message.queue_offset,
               message.physical_offset, message.sys_flag, message.born_timestamp)
    return [
        text(message.topic.encode()), text(plain_body(message)), *map(str, numbers), host(message.born_host),
        str(message.store_timestamp), host(message.store_host), str(message.reconsume_times),
        str(message.prepared_transaction_offset), pairs(message.properties),
    ]


class BrokerTests(SynchronousTestCase):
    """Producers and consumers work as usual; our files equal the brokers' files; our commands read them."""

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
        group.messages.wait_started(seconds=PATIENCE)
        return group

    def test_5_3_3(self) -> None:
        """The present release."""
        self.play(self.group_of("5.3.3"))

    def test_4_9_8(self) -> None:
        """The last release before 5, its leaders pushing batches."""
        self.play(self.group_of("4.9.8", enableBatchPush=True))

    def test_survivor_lacks_entries(self) -> None:
        """
        A broker misses messages that the other one and our member acknowledged; then the other one is lost.
        Our member, which must never lead, leads until the survivor has them, and the survivor leads.
        """
        # (Without the option 5.3 forgets messages of its queues when it was killed.)
        group = self.group_of("5.3.3", recheckReputOffsetFromCq=True)
        first = group.leader()
        (survivor,) = set(group.brokers) - {first}
        self.send_and_receive(group)
        group.check()
        # Brokers copy topics every ten seconds, outside the log; one that has not cannot serve later.
        topics = group.directory / survivor / "store" / "config" / "topics.json"
        wait_until(lambda: topics.exists() and f'"{TOPIC}"' in topics.read_text(), seconds=PATIENCE,
                   what="the topic at the survivor", every=0.2)
        group.brokers[survivor].kill()
        group.send(MESSAGES)
        group.brokers[first].kill()
        group.brokers[survivor].start()
        group.brokers[survivor].wait_started()
        wait_until(lambda: group.leader() == survivor, seconds=PATIENCE, what="a leading survivor", every=0.2)
        self.send_and_receive(group)
        self.assertIn("standing-in", group.ours.log_path.read_text())

    def play(self, group: BrokerGroup) -> None:
        """Each member is lost once, and messages continue; then everything is compared."""
        first = group.leader()
        self.assertIn(first, group.brokers)
        self.send_and_receive(group)

        # The leading broker is killed: without our vote and our acknowledgements the group would stop.
        # We hold all acknowledged entries and vote for no member that holds fewer: the other broker must have
        # them.
        group.check()
        group.brokers[first].kill()
        self.send_and_receive(group)
        second = group.leader()
        self.assertEqual(set(group.running()), {second, OURS})
        self.assertNotEqual(second, OURS)
        group.brokers[first].start()
        group.brokers[first].wait_started()

        # Our member is killed, and misses some entries.
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
        """Send more messages; the consumer receives all messages so far, unchanged."""
        group.send(MESSAGES)
        self.assertEqual(group.messages.received(len(group.sent)), (len(group.sent), 0))

    def check_records(self, group: BrokerGroup, end_index: int) -> None:
        """Our codec reads the brokers' records, and would write them byte for byte."""
        for record in group.records(end_index):
            self.assertEqual(encode_message(decode_entry_body(record.body, record.pos)), record.body)

    def check_tail(self, group: BrokerGroup, end_index: int) -> None:
        """C{dledger tail --format rocketmq} shows every message sent, with every field."""
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
                         [f"index={index}" for index in range(end_index - 2, end_index + 1)])

    def check_message(self, sent: Sent, document: dict[str, Any]) -> None:
        """One message that the producer knows to be stored."""
        body = body_of(sent.number)
        shown = {name: document[name] for name in ("queue_id", "queue_offset", "unique_key", "tags", "keys",
                                                   "body", "compression")}
        self.assertEqual(shown, {
            "queue_id": sent.queue_id, "queue_offset": sent.queue_offset, "unique_key": sent.unique_key,
            "tags": "odd" if sent.number % 2 else "even", "keys": [f"k{sent.number}", "all"],
            "body": body.decode(), "compression": "zlib" if len(body) > 2000 else "none",
        })
        self.assertEqual(document["properties"]["number"], str(sent.number))
