# -*- test-case-name: tests.broker.sending.test_plain_sends -*-
"""The short road of sends: the same log and the same answers as by the long one."""

from __future__ import annotations

import random
from typing import Any

import attrs
from twisted.internet.address import IPv4Address
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.producing.send_properties import (
    broker_properties,
    plain_properties,
    stored_properties,
    waits,
)
from dledger.rocketmq.broker.producing.sending import sends
from dledger.rocketmq.metadata.tables import TopicConfig
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from protocols.wire.rocketmq.broker_frames import PutRequest, request_parts
from tests.broker.put_support import WALL_MS
from tests.broker.send_support import Client, Sending, send_of
from tests.broker.support import log_bytes
from tests.protocols.fakes import sent_commands
from tests.wire.test_send_request import java

PLAIN_PROPERTIES = (
    "", "UNIQ_KEY\x01u\x02A\x01b", "TAGS\x01A", "TAGS\x01A\x02", "WAIT\x01true\x02TAGS\x01A", "KEYS\x01é 'x"
)

#: Of each field, by its short name, what is not plain, or looks so.
ODD: dict[str, list[Any]] = {
    "b": ["new", "T 1", "", "%RETRY%P", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"],
    "c": ["nothing"], "d": ["-1", "x"], "e": [4, 99, -1, "x"], "f": [4, 8, 2**31, -1], "flag": [2],
    "g": [-1, 2**62], "h": [-1, 2**31],
    "i": ["WAIT\x01false", "A\x01WAIT\x01true", "DELAY\x012", "DELAY\x01x", "CLUSTER\x01D", "A\x01\0",
          "TRAN_MSG\x01true", 'KEYS\x01"', "WAIT\x01true\x02WAIT\x01false", "AWAIT\x01true", "x" * 32760,
          "WAIT\x01truely", "TIMER_DELAY_MS\x017", "TIMER_D\x017"],
    "j": ["1", "-1"], "k": ["true"], "l": ["16"], "m": ["true"],
}


def length_word(frame: bytes) -> bytes:
    """The whole frame."""
    return len(frame).to_bytes(4, "big") + frame


def one_of(chance: random.Random) -> RemotingCommand:
    """A request with a few things that are not usual."""
    fields: dict[str, object] = {"properties": "TAGS\x01A\x02UNIQ_KEY\x01u\x02WAIT\x01true"}
    unusual: dict[str, list[object]] = {
        "topic": ["T2", "new", "%RETRY%G", "SCHEDULE_TOPIC_XXXX", "tags", "order", "closed", "a\0", ""],
        "queueId": [3, 4, -1, "x", "", "\u0663", "1" * 30, "+1"],
        "properties": [
            "", "WAIT\x01false", "WAIT\x01true\x02a\x01b", "a\x01b\x02WAIT\x01TRUE\x02", "DELAY\x012",
            "TIMER_DELAY_MS\x017", "TIMER_D\x017",
            "TRAN_MSG\x01true", "CLUSTER\x01x", "a\0b", "a\x01" + "b" * 32740, "\u00e9\x01\u00df\x02",
        ],
        "sysFlag": [1, 4, 8, 12, 2**31, -1, "z", 0x301], "flag": [-5, 2**31, 9],
        "batch": ["true", "false"], "bornTimestamp": [0, -1, 2**63, 2**63 - 1],
        "reconsumeTimes": [1, "q"], "unitMode": ["true", "no"], "defaultTopicQueueNums": ["x", -1],
        "maxReconsumeTimes": [2],
    }
    for name in chance.sample(sorted(unusual), chance.choice((0, 1, 1, 2))):
        fields[name] = chance.choice(unusual[name])
    without = chance.choice(("topic", "producerGroup", "defaultTopic", "flag", "properties", *[""] * 20))
    body = b"x" * chance.choice((0, 10, 3000, 3001))
    return send_of(body, code=chance.choice((310, 310, 310, 10, 320)), without=without, **fields)


class Twins:
    """Two brokers, of which one is asked over a connection without the short road; both get the same."""

    def __init__(self, store: dict[str, Any] | None = None, **options: Any) -> None:
        store = store or {"mapped_file_size_commit_log": 1 << 17}
        self.brokers = [Sending(store=store, **options) for _ in range(2)]
        self.long, self.short = self.brokers
        for broker in self.brokers:
            broker.metadata.topics.put(
                TopicConfig(topic_name="T1", read_queue_nums=4, write_queue_nums=4, perm=6), WALL_MS)
        self.clients = [broker.connect() for broker in self.brokers]
        self.clients[0].connection._short = None  # all requests are commands
        self.puts = 0
        reader = self.short.broker.sends._plain
        read = reader.read

        def counted(connection: Any, request: Any) -> Any:
            found = read(connection, request)
            self.puts += found is not None
            return found

        reader.read = counted  # type: ignore[method-assign]

    def send(self, *frames: bytes) -> list[list[bytes]]:
        """In one read, to both. @return: frames of what each answered, sorted."""
        stream = b"".join(map(length_word, frames))
        for client in self.clients:
            client.connection.dataReceived(stream)
        return self.answered()

    def answered(self) -> list[list[bytes]]:
        """Since the last call."""
        found = []
        for broker, client in zip(self.brokers, self.clients, strict=True):
            broker.clock.advance(0)
            found.append(sorted(map(encode_command, sent_commands(client.transport.value()))))
            client.transport.clear()
        return found

    def stop(self) -> None:
        """Both."""
        for broker in self.brokers:
            broker.stop()


class PlainSendsTests(SynchronousTestCase):
    """Both roads."""

    def made(self, **options: Any) -> Twins:
        """Two brokers."""
        twins = Twins(**options)
        self.addCleanup(twins.stop)
        return twins

    def same(self, twins: Twins, answers: list[list[bytes]]) -> None:
        """Neither log nor answers nor what is owed say which road was gone."""
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(log_bytes(twins.long.store.log), log_bytes(twins.short.store.log))
        for name in ("unanswered", "unanswered_bytes"):
            long, short = [getattr(client.connection, name) for client in twins.clients]
            self.assertEqual(long, short, name)

    def test_plain(self) -> None:
        """Stored and answered alike, and by the short road."""
        twins = self.made()
        answers = twins.send(*[java(opaque=at, e=at % 4, i="TAGS\x01A\x02WAIT\x01true", body=b"%d" % at)
                               for at in range(20)])
        self.same(twins, answers)
        self.assertEqual((twins.puts, len(answers[0])), (20, 20))
        self.assertEqual([one.body for one in twins.short.stored()], [b"%d" % at for at in range(20)])

    def test_anything(self) -> None:
        """Any mixture, in any pieces: topics, queues, properties, sizes, flags, other commands between."""
        twins = self.made()
        rng = random.Random(11)
        choose = rng.choice
        for round_number in range(300):
            frames = []
            for _ in range(rng.randrange(1, 8)):
                fields: dict[str, Any] = {
                    "e": rng.randrange(4), "h": choose([0, 7]), "f": choose([0, 1]), "d": choose(["4", "8"]),
                    "g": rng.randrange(1, 2**41), "i": choose(PLAIN_PROPERTIES),
                }
                for name in rng.sample(sorted(ODD), k=choose([0, 0, 0, 1, 1, 2])):
                    fields[name] = choose(ODD[name])
                body = rng.randbytes(choose([0, 5, 100, 900, 3000]))
                opaque = rng.randrange(10**6)
                frames.append(java(opaque, body, **fields))
                if rng.random() < 0.05:
                    frames.append(encode_command(RemotingCommand(code=1234, opaque=opaque))[4:])
            self.same(twins, twins.send(*frames))
            if round_number % 50 == 49:  # topics change under the plans
                perm = 4 if round_number == 249 else 6
                for broker in twins.brokers:
                    broker.metadata.topics.put(TopicConfig(
                        topic_name="T1", read_queue_nums=3, write_queue_nums=3, perm=perm), WALL_MS)
        self.assertGreater(twins.puts, 100)
        self.assertGreater(len(twins.short.stored()), twins.puts)

    def test_unusual(self) -> None:
        """Of thousands of requests by long names and short ones, with a few things that are not usual."""
        twins = self.made(store={"mapped_file_size_commit_log": 1 << 20, "max_message_size": 3000})
        for broker in twins.brokers:
            topics = broker.metadata.topics
            for name, changed in (("T1", {}), ("T2", {}), ("tags", {"topic_filter_type": "MULTI_TAG"}),
                                  ("order", {"order": True}), ("closed", {"perm": 4})):
                made = TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, perm=6)
                topics.put(attrs.evolve(made, **changed), 2)  # type: ignore[arg-type]
        chance = random.Random(1)
        for number in range(4000):
            requests = [one_of(chance) for _ in range(chance.choice((1, 1, 3)))]
            answers = twins.send(*[encode_command(request)[4:] for request in requests])
            self.assertEqual(answers[0], answers[1], requests)
            if number % 100 == 99:
                self.same(twins, answers)
        self.assertGreater(twins.puts, 500)
        self.assertGreater(len(twins.short.stored()), twins.puts)

    def test_longest(self) -> None:
        """A message that nearly fills a file takes the short road; longer ones are refused alike."""
        twins = self.made(store={"mapped_file_size_commit_log": 4096})
        size, code = 3700, 0
        while not code:
            size += 1
            answers = twins.send(java(opaque=size, body=bytes(size)))
            self.same(twins, answers)
            code = decode_command(answers[1][0][4:]).code
        self.assertEqual(code, Code.MESSAGE_ILLEGAL)
        self.assertEqual([len(one.body) for one in twins.short.stored()], list(range(3701, size)))
        self.assertGreater(twins.puts, 10)
        self.assertLess(size - 3701 - twins.puts, 80)

    def test_order(self) -> None:
        """What is plain and what is not are stored in the order in which they came."""
        twins = self.made()
        frames = []
        for at in range(40):
            fields = [{}, {"i": 'A\x01"'}, {"j": "1"}, {"i": "WAIT\x01false"}, {}, {}][at % 6]
            frames.append(java(at, b"%d" % at, **fields))
        frames.insert(30, encode_command(RemotingCommand(code=1234, opaque=999))[4:])
        self.same(twins, twins.send(*frames))
        self.assertEqual([one.body for one in twins.short.stored()], [b"%d" % at for at in range(40)])

    def test_topic_changes(self) -> None:
        """One that may no longer be written to, or has fewer queues, is not written to by an old plan."""
        twins = self.made()
        twins.send(java(e=3))
        for fields in ({"perm": 4, "write_queue_nums": 4, "read_queue_nums": 4},
                       {"perm": 6, "write_queue_nums": 2, "read_queue_nums": 2}):
            for broker in twins.brokers:
                broker.metadata.topics.put(TopicConfig(topic_name="T1", **fields), WALL_MS)
            self.same(twins, twins.send(java(e=3)))
        self.assertEqual((len(twins.short.stored()), twins.puts), (1, 1))

    def test_sync(self) -> None:
        """Answered when the slave has them; not available, too late: each with its code."""
        twins = self.made(broker_role="SYNC_MASTER")
        self.same(twins, twins.send(java(1)))
        slaves = [broker.slave() for broker in twins.brokers]
        self.same(twins, twins.send(java(2), java(3)))
        self.assertEqual(twins.clients[1].connection.unanswered, 2)
        for broker, slave in zip(twins.brokers, slaves, strict=True):
            broker.report(slave)
        answers = twins.answered()
        self.same(twins, answers)
        self.assertEqual(len(answers[1]), 2)
        twins.send(java(4))
        for broker in twins.brokers:
            broker.pass_time(3500)
        answers = twins.answered()
        self.same(twins, answers)
        self.assertIn(b'"code":12,', answers[1][0])

    def test_refused(self) -> None:
        """A slave, a broker that stops: the long road's words."""
        twins = self.made(broker_role="SLAVE")
        self.same(twins, twins.send(java(1)))
        twins = self.made()
        twins.send(java(1))
        for broker in twins.brokers:
            broker.pipeline.close("it stops")
        answers = twins.send(java(2), java(3))
        self.same(twins, answers)
        self.assertEqual(len(answers[1]), 2)

    def test_unforeseen(self) -> None:
        """A bug costs the connection, not the broker."""
        twins = self.made()

        def fail(topic: str) -> int:
            raise RuntimeError("a bug")

        self.patch(twins.short.broker.checks, "plain_queues", fail)
        twins.clients[1].connection.dataReceived(length_word(java()))
        self.assertTrue(twins.clients[1].connection.is_lost)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_who_sent_it(self) -> None:
        """Each connection's messages have its own address."""
        twins = self.made()
        other = Client(twins.short)
        other.transport.peerAddr = IPv4Address("TCP", "10.9.8.7", 6)
        twins.send(java(1))
        other.connection.dataReceived(length_word(java(1)))
        twins.answered()
        hosts = [str(one.born_host) for one in twins.short.stored()]
        self.assertEqual(len(set(hosts)), 2)
        self.assertEqual(hosts[1], "10.9.8.7:6")


class TogetherTests(SynchronousTestCase):
    """What several connections send in one turn is one put."""

    def setUp(self) -> None:
        self.start()

    def start(self, **options: Any) -> None:
        """A broker with three clients."""
        self.broker = Sending(store={"mapped_file_size_commit_log": 1 << 17}, **options)
        self.addCleanup(self.broker.stop)
        self.broker.metadata.topics.put(
            TopicConfig(topic_name="T1", read_queue_nums=4, write_queue_nums=4, perm=6), WALL_MS)
        self.clients = [self.broker.connect() for _ in range(3)]
        self.puts: list[int] = []
        put = self.broker.pipeline.put

        def counted(messages: Any, **options: Any) -> Any:
            self.puts.append(len(messages))
            return put(messages, **options)

        self.patch(self.broker.pipeline, "put", counted)

    def send(self, client: int, opaque: int, **fields: Any) -> None:
        """One message, whose body is the number of its request."""
        frame = length_word(java(opaque, b"%d" % opaque, **fields))
        self.clients[client].connection.dataReceived(frame)

    def answered(self, client: int) -> list[tuple[int, int]]:
        """To one of them: numbers of requests, and codes."""
        return [(one.opaque, one.code) for one in self.clients[client].received()]

    def stored(self) -> list[bytes]:
        """Bodies in the log."""
        return [one.body for one in self.broker.stored()]

    def several(self) -> None:
        """They have sent before."""
        for client in range(3):
            self.send(client, 100 + client)
            self.answered(client)
        self.puts.clear()

    def test_one(self) -> None:
        """A producer that sends alone does not wait for the end of the turn."""
        for opaque in range(3):
            self.send(0, opaque)
            self.assertEqual(self.puts, [1] * (opaque + 1))
        self.assertEqual(self.answered(0), [(0, 0), (1, 0), (2, 0)])

    def test_a_put_of_another_kind(self) -> None:
        """It comes after the sends that were read before it."""
        self.several()
        native = b"".join(request_parts(PutRequest(topic="T1", bodies=(b"second",), queue_id=0), 9))
        self.clients[1].connection.dataReceived(length_word(java(1, b"first")) + native)
        self.broker.clock.advance(0)
        found = [(one.body, one.queue_offset) for one in self.broker.stored()][3:]
        self.assertEqual(found, [(b"first", 3), (b"second", 4)])

    def test_one_cannot_be_answered(self) -> None:
        """The others get their answers."""
        self.several()
        for client in range(3):
            self.send(client, client)
        bad = self.clients[0].connection
        answer = type(bad).answer_sends

        def answered(connection: Any, *given: Any) -> Any:
            if connection is bad:
                raise RuntimeError("a bug")
            return answer(connection, *given)

        self.patch(type(bad), "answer_sends", answered)
        self.assertEqual([self.answered(client) for client in (1, 2)], [[(1, 0)], [(2, 0)]])
        self.assertTrue(bad.is_lost)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_several(self) -> None:
        """One put, in the order of the reads; each gets the answer to its request, with its own offsets."""
        self.several()
        self.send(0, 1)
        self.send(1, 2, i="WAIT\x01false")  # the long road, and answered at once
        self.send(2, 3)
        self.assertEqual(self.puts, [])
        self.assertEqual(self.answered(1), [(2, 0)])
        self.assertEqual(self.puts, [3])
        self.assertEqual(self.stored()[3:], [b"1", b"2", b"3"])
        for client, opaque in ((0, 1), (2, 3)):
            (answer,) = self.clients[client].received()
            self.assertEqual((answer.opaque, answer.code), (opaque, 0))
            (stored,) = [one for one in self.broker.stored() if one.body == b"%d" % opaque]
            self.assertEqual(answer.ext_fields["msgId"][16:], f"{stored.physical_offset:016X}")
            self.assertEqual(answer.ext_fields["queueOffset"], str(stored.queue_offset))

    def test_slaves(self) -> None:
        """All wait for slaves together, and the answers that were made before are each for its connection."""
        self.start(broker_role="SYNC_MASTER")
        slave = self.broker.slave()
        for opaque in (1, 10, 20):
            for client in range(3):
                self.send(client, opaque + client)
            self.assertEqual([self.answered(client) for client in range(3)], [[]] * 3)
            self.broker.report(slave)
            self.assertEqual([self.answered(client) for client in range(3)],
                             [[(opaque + client, 0)] for client in range(3)])
        self.assertEqual(self.puts[-2:], [3, 3])

    def test_again(self) -> None:
        """The same one again in the same turn: what came before it is put with it, in order."""
        self.several()
        self.send(0, 1)
        self.send(1, 2)
        self.send(1, 3)
        self.assertEqual(self.puts, [3])
        self.send(0, 4)
        self.assertEqual((self.answered(0), self.answered(1)), ([(1, 0), (4, 0)], [(2, 0), (3, 0)]))
        self.assertEqual(self.stored()[3:], [b"1", b"2", b"3", b"4"])

    def test_many(self) -> None:
        """A turn may end late: from L{sends.TOGETHER_MAX} messages on nothing waits for that."""
        self.several()
        self.patch(sends, "TOGETHER_MAX", 2)
        self.send(0, 1)
        self.send(1, 2)
        self.assertEqual(self.puts, [2])

    def test_long_ones(self) -> None:
        """Nor from some bytes on, of short sends and others together."""
        self.several()
        self.patch(sends, "TOGETHER_BYTES_MAX", 4)
        self.send(0, 10)
        self.assertEqual(self.puts, [])
        self.send(1, 11, i="WAIT\x01false")
        self.assertEqual(self.puts, [2])
        self.send(2, 12)
        self.assertEqual(self.puts, [2])

    def test_refused(self) -> None:
        """All are answered that nothing was stored, and that the broker goes on."""
        self.several()
        self.send(0, 1)
        self.send(1, 2, i="WAIT\x01false")
        self.broker.pipeline.close("it stops")
        self.assertEqual((self.answered(0), self.answered(1)), ([(1, 14)], [(2, 14)]))
        self.assertEqual(len(self.stored()), 3)

    def test_lost(self) -> None:
        """A connection that ends before the turn does: the others are answered."""
        self.several()
        self.send(0, 1)
        self.send(1, 2)
        self.clients[0].connection.abort("lost")
        self.assertEqual(self.answered(1), [(2, 0)])
        self.assertEqual(self.stored()[3:], [b"1", b"2"])

    def test_bug_in_one(self) -> None:
        """A bug costs the connection that met it, with all its messages of this read; others lose nothing."""
        self.several()
        self.send(0, 1)
        read = self.broker.broker.sends._plain.read
        seen: list[int] = []

        def fail(connection: Any, request: Any) -> Any:
            seen.append(request.opaque)
            return read(connection, request) if len(seen) < 2 else 1 // 0

        self.patch(self.broker.broker.sends._plain, "read", fail)
        self.clients[1].connection.dataReceived(length_word(java(2)) + length_word(java(3)))
        self.assertTrue(self.clients[1].connection.is_lost)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual((self.answered(0), self.stored()[3:]), ([(1, 0)], [b"1"]))

    def test_bug_in_all(self) -> None:
        """A bug in the put costs the connections of this turn."""
        self.several()
        self.send(0, 1)
        self.send(1, 2)
        self.patch(self.broker.pipeline, "put", lambda *_messages, **_options: 1 // 0)
        self.broker.clock.advance(0)
        self.assertEqual([one.connection.is_lost for one in self.clients], [True, True, False])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)


class PlainPropertiesTests(SynchronousTestCase):
    """What is stored of properties."""

    def test_twin(self) -> None:
        """As by the long road, of any items in any order; a put that does not wait goes there."""
        rng = random.Random(2)
        added = broker_properties("C", region="R", trace_on=True)
        items = ["WAIT\x01true", "WAIT\x01false", "TAGS\x01A", "AWAIT\x01true", "WAIT\x01true ", "", "x",
                 "K\x01WAIT\x01true"]
        taken = 0
        for _ in range(3000):
            text = "\x02".join(rng.choices(items, k=rng.randrange(4))) + rng.choice(["", "\x02"])
            raw = text.encode()
            found = plain_properties(raw, added)
            if found is not None:
                taken += 1
                self.assertEqual((found, waits(raw)), (stored_properties(raw, added), True), raw)
        self.assertGreater(taken, 1000)
