# -*- test-case-name: tests.broker.consuming.test_key_queries -*-
"""Messages by their keys: what is answered, and how much work one query may make."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming import key_queries
from dledger.rocketmq.broker.consuming.key_queries import (
    BYTES_MAX,
    COUNT_MAX,
    NO_ROOM_S,
    QUERY_MESSAGE,
    UNIQUE_COUNT_MAX,
    WAIT_S,
    WAITING_MAX,
)
from dledger.rocketmq.store.index.indexing import DELAY_S
from protocols.wire.remoting import RemotingCommand
from tests.broker.asked import NOW_MS, Asked
from tests.broker.support import message
from tests.processes.brokers import messages_of

ALL = {"maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}


class QueryCase(SynchronousTestCase):
    """A broker with an index."""

    def build(self, **options: Any) -> None:
        """Make it."""
        self.asked = Asked(**options)
        self.addCleanup(self.asked.close)
        self.asked.groups = [self.asked.broker.key_queries]
        self.client = self.asked.client()

    def setUp(self) -> None:
        self.build()

    def put(self, *keys: str, topic: str = "T1", body: bytes = b"x", unique: str = "") -> None:
        """A message with these keys, a second after the one before."""
        properties = {"KEYS": " ".join(keys)} if keys else {}
        if unique:
            properties["UNIQ_KEY"] = unique
        self.asked.append(message(body, topic=topic, properties=properties))
        self.asked.clock.advance(0.5)
        self.asked.clock.advance(0.5)

    def settle(self) -> None:
        """Let everything be indexed."""
        for _ in range(50):
            self.asked.clock.advance(DELAY_S)

    def ask(self, key: str, topic: str = "T1", **fields: object) -> RemotingCommand:
        """One query."""
        return self.client.ask(QUERY_MESSAGE, {**ALL, "topic": topic, "key": key, **fields})

    def bodies(self, key: str, **fields: object) -> list[bytes]:
        """The messages of an answer."""
        answer = self.ask(key, **fields)  # type: ignore[arg-type]
        self.assertEqual(answer.code, 0 if answer.body else 22, answer.remark)
        return [one.body for one in messages_of(answer)]


class AnswerTests(QueryCase):
    """What is answered."""

    def test_found(self) -> None:
        """By each of its keys, the oldest first; other topics and other keys are not answered."""
        self.put("a", "b", unique="u0", body=b"0")
        self.put("b", unique="u1", body=b"1")
        self.put("b", topic="T2", body=b"2")
        self.settle()
        self.assertEqual(self.bodies("a"), [b"0"])
        self.assertEqual(self.bodies("b"), [b"0", b"1"])
        self.assertEqual(self.bodies("b", topic="T2"), [b"2"])
        self.assertEqual(self.bodies("u1", _UNIQUE_KEY_QUERY="true"), [b"1"])
        self.assertEqual(self.bodies("u1 "), [])

    def late(self, key: str, seconds: float) -> list[RemotingCommand]:
        """The answers to one query, after this time."""
        self.client.send(QUERY_MESSAGE, {**ALL, "topic": "T1", "key": key})
        for _ in range(round(seconds / DELAY_S)):
            self.asked.clock.advance(DELAY_S)
        return self.client.received()

    def test_just_stored(self) -> None:
        """What was stored before a query is found, although it is neither dispatched nor in the index yet."""
        for number in range(3):
            self.asked.store.log.append([[message(b"%d" % number, properties={"KEYS": "a"})]], NOW_MS)
            (answer,) = self.late("a", 2 * DELAY_S)
            self.assertEqual([one.body for one in messages_of(answer)][-1:], [b"%d" % number])

    def test_an_index_that_does_not_come(self) -> None:
        """A query waits for L{WAIT_S} and no longer; one that the index has failed for does not wait."""
        indexing = self.asked.store.indexing
        assert indexing is not None
        self.patch(indexing, "_try_slice", lambda bound, behind: 1.0)
        self.put("a")
        self.assertEqual(self.late("a", WAIT_S - 0.1), [])
        self.assertEqual(self.late("a", 0.2)[0].code, Code.QUERY_NOT_FOUND)
        self.assertEqual(len(self.late("b", WAIT_S + 0.1)), 2)
        indexing.index.failed(OSError(5, "made up"))
        self.assertEqual(len(self.late("a", 0.0)), 1)

    def test_none(self) -> None:
        """Java's code and words; the answer says how far the index is."""
        answer = self.ask("a")
        self.assertEqual(answer.code, Code.QUERY_NOT_FOUND)
        self.assertEqual(answer.remark, "can not find message, maybe time range not correct")
        self.assertEqual(
            answer.ext_fields, {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
        )
        self.put("a")
        self.put("b")
        self.settle()
        offset = self.asked.store.log.end_offset // 2
        for key, code in (("a", 0), ("c", 22)):
            answer = self.ask(key)
            self.assertEqual(answer.code, code)
            self.assertEqual(answer.ext_fields, {
                "indexLastUpdateTimestamp": str(NOW_MS + 1000), "indexLastUpdatePhyoffset": str(offset),
            })

    def test_hash_collisions(self) -> None:
        """Two keys with one hash are not confused: C{Aa} and C{BB} have Java's same."""
        self.put("Aa", body=b"0")
        self.put("BB", body=b"1")
        self.settle()
        self.assertEqual(self.bodies("Aa"), [b"0"])
        self.assertEqual(self.bodies("BB"), [b"1"])

    def test_times(self) -> None:
        """Messages of a time."""
        for number in range(10):
            self.put("a", body=b"%d" % number)
        self.settle()
        found = self.bodies("a", beginTimestamp=NOW_MS + 3000, endTimestamp=NOW_MS + 6000)
        self.assertEqual(found, [b"3", b"4", b"5", b"6"])
        self.assertEqual(self.bodies("a", beginTimestamp=NOW_MS + 30_000), [])
        self.assertEqual(self.bodies("a", endTimestamp=-1), [])

    def test_counts(self) -> None:
        """At most the wanted number, at most Java's 64, and 32 of a unique key: the youngest."""
        for number in range(70):
            self.put("a", body=b"%d" % number)
        self.settle()
        self.assertEqual(self.bodies("a", maxNum=2), [b"68", b"69"])
        self.assertEqual(len(self.bodies("a", maxNum=1000)), COUNT_MAX)
        self.assertEqual(len(self.bodies("a", maxNum=0, _UNIQUE_KEY_QUERY="true")), UNIQUE_COUNT_MAX)
        self.assertEqual(self.bodies("a", maxNum=0), [])
        self.assertEqual(self.bodies("a", maxNum=-5), [])

    def test_fields(self) -> None:
        """Missing and malformed fields are refused."""
        for name in ("topic", "key", "maxNum", "beginTimestamp", "endTimestamp"):
            fields = {**ALL, "topic": "T1", "key": "a"}
            del fields[name]
            self.assertEqual(self.client.ask(QUERY_MESSAGE, fields).code, Code.SYSTEM_ERROR)
        self.assertEqual(self.ask("a", maxNum="x").code, Code.SYSTEM_ERROR)
        self.assertEqual(self.bodies("k" * 100_000), [])
        self.assertEqual(self.bodies("a", topic="t" * 100_000), [])

    def test_slave(self) -> None:
        """A slave answers, too."""
        self.build(is_slave=True)
        self.put("a", body=b"0")
        self.settle()
        self.assertEqual(self.bodies("a"), [b"0"])

    def test_cut_and_damaged(self) -> None:
        """A record that was cut, or is damaged, or is another one by now, is not answered."""
        for number in range(4):
            self.put("a" if number else "b", body=b"%d" % number)
        self.settle()
        ends = [self.asked.store.log.end_offset * number // 4 for number in range(5)]
        self.asked.store.log.cut(ends[3])
        self.assertEqual(self.bodies("a"), [b"1", b"2"])
        self.put("b", body=b"4")
        self.settle()
        self.assertEqual(self.bodies("a"), [b"1", b"2"])
        self.assertEqual(self.bodies("b"), [b"0", b"4"])
        file = self.asked.disk.open("base/commitlog/" + "0" * 20)
        file.pwrite(b"y", ends[2] + 88)
        self.assertEqual(self.bodies("a"), [b"1"])

    def test_disabled(self) -> None:
        """Without an index the reason is reported."""
        self.asked.store.indexing = None
        answer = self.ask("a")
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)
        self.assertIn("messageIndexEnable", str(answer.remark))

    def test_unreadable(self) -> None:
        """A file that cannot be read: the query is refused, and nothing else."""
        self.put("a")
        self.settle()
        self.asked.store.checkpoint()
        index = self.asked.store.indexing.index if self.asked.store.indexing else None
        assert index is not None

        def fail(number: int) -> Any:
            raise OSError(5, "cannot be read")

        self.patch(index.files[0], "entry", fail)
        self.assertEqual(self.ask("a").code, Code.SYSTEM_ERROR)


class BoundTests(QueryCase):
    """The work of queries."""

    def test_turns(self) -> None:
        """A long chain takes several turns; queries take turns, too."""
        self.patch(key_queries, "STEPS_TURN", 10)
        queries = self.asked.broker.key_queries
        turn, self.turns = queries.turn, 0

        def counted() -> None:
            self.turns += 1
            turn()

        self.patch(queries, "turn", counted)
        for _ in range(20):
            self.put("a")
        self.settle()
        first = self.client.send(QUERY_MESSAGE, {**ALL, "topic": "T1", "key": "a"})
        second = self.client.send(QUERY_MESSAGE, {**ALL, "topic": "T1", "key": "none"})
        answers = self.client.received()
        self.assertEqual([one.opaque for one in answers], [second, first])
        self.assertEqual(len(messages_of(answers[1])), 20)
        self.assertGreater(self.turns, 5)

    def test_steps(self) -> None:
        """A query that looks at too much is answered with the messages found so far."""
        self.patch(key_queries, "STEPS_MAX", 20)
        for _ in range(20):
            self.put("a")
        self.settle()
        self.assertEqual(len(self.bodies("a")), 4)

    def test_bytes(self) -> None:
        """Large messages: at least one, then no more than fit."""
        self.patch(key_queries, "BYTES_MAX", 2000)
        for number in range(5):
            self.put("a", body=b"%d" % number * 800)
        self.settle()
        self.assertEqual([one[:1] for one in self.bodies("a")], [b"3", b"4"])
        self.patch(key_queries, "BYTES_MAX", 10)
        self.assertEqual([one[:1] for one in self.bodies("a")], [b"4"])

    def test_many(self) -> None:
        """Queries that wait are bounded; an ended connection has none; a broker that ends answers them."""
        self.patch(self.asked.broker.key_queries, "turn", lambda: None)
        other = self.asked.client()
        for _ in range(WAITING_MAX):
            other.send(QUERY_MESSAGE, {**ALL, "topic": "T1", "key": "a"})
        self.assertEqual(self.ask("a").code, Code.SYSTEM_BUSY)
        other.lose()
        self.client.send(QUERY_MESSAGE, {**ALL, "topic": "T1", "key": "a"})
        self.assertEqual(self.client.received(), [])
        self.asked.broker.key_queries.stop()
        self.assertEqual([one.code for one in self.client.received()], [Code.QUERY_NOT_FOUND])

    def waiting(self, count: int) -> list[int]:
        """Queries that wait for their turn. @return: their numbers."""
        queries = self.asked.broker.key_queries
        self.patch(key_queries, "STEPS_TURN", 0)
        asked = [self.client.send(QUERY_MESSAGE, {**ALL, "topic": "T1", "key": "a"}) for _ in range(count)]
        self.patch(key_queries, "STEPS_TURN", 100)
        self.assertEqual(len(queries._waiting), count)
        return asked

    def test_does_not_read(self) -> None:
        """A connection that does not read its answers gets no more."""
        self.put("a")
        self.settle()
        (opaque,) = self.waiting(1)
        self.client.connection.is_congested = True
        self.asked.broker.key_queries.turn()
        (answer,) = self.client.received()
        self.assertEqual((answer.opaque, answer.code), (opaque, Code.SYSTEM_BUSY))

    def test_room(self) -> None:
        """A query begins when there is room for its answer, and has this room until it is answered."""
        for _ in range(9):
            self.put("a")
        self.settle()
        account = self.client.connection.account
        budget = self.asked.router().budgets.answers
        asked = self.waiting(5)
        self.patch(key_queries, "STEPS_TURN", 6)
        self.asked.broker.key_queries.turn()
        self.assertEqual(account.held_bytes, BYTES_MAX)
        budget.held += budget.bytes_max
        self.asked.clock.pump([NO_ROOM_S] * 20)
        self.assertEqual([one.opaque for one in self.client.received()], asked[:1])
        self.assertEqual(account.held_bytes, 0)
        budget.held -= budget.bytes_max
        self.asked.clock.pump([NO_ROOM_S] * 30)
        self.assertEqual([one.opaque for one in self.client.received()], asked[1:])
        self.assertEqual((account.held_bytes, budget.held), (0, 0))
