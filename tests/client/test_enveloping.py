# -*- test-case-name: tests.client.test_enveloping -*-
"""Times and headers of entries: from each face of the client into the log, and out of it again."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.client import LogClient
from dledger.client.enveloping import Enveloping
from dledger.client.errors import AppendFailed
from dledger.client.lone_appends import BODY_BYTES_MAX
from dledger.client.values import Entry, EnvelopedEntry, entries_of
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import WIRE_FLAG_MACHINE
from protocols.wire.ledger.entry import CHANNEL_AT
from protocols.wire.ledger.envelopes import ENVELOPE_BYTES_MIN, ENVELOPE_MAGIC, envelope_head
from protocols.wire.ledger.messages import MetadataRequest
from protocols.wire.ledger.own.own_entries import TERM_START_CHANNEL
from tests.aio.served import ServedGroup, play
from tests.client.fakes import FakeGroup
from tests.client.test_appender import GroupCase
from tests.client.test_blocking import LiveGroup
from tests.client.test_values import batch_of

NOW_MS = 1767323045678
HEADERS = {"type": b"order", "id": b"\xff\x00"}
#: Headers that are refused, and a word of the reason.
WRONG: tuple[tuple[Any, str], ...] = (
    ({"a": "text"}, "must be bytes, not str"), ({1: b""}, "must be str, not int"), ([1], "not list"),
    ({"": b""}, "has 0 bytes"), ({"a": bytes(9000)}, "at most 8192"), ({"a\n": b""}, "printable"),
    ({str(n): b"" for n in range(40)}, "at most 32"),
)


class EnvelopingCase(GroupCase):
    """A client that reports times."""

    options = {"envelope": True, "wall_s": lambda: NOW_MS / 1000}

    def done(self, call: Deferred[Any]) -> Any:
        """Its result."""
        self.group.settle()
        return self.successResultOf(call)

    def refused(self, call: Deferred[Any]) -> str:
        """Its reason; nothing was sent."""
        self.group.settle()
        error = self.failureResultOf(call, AppendFailed).value
        self.assertIs(error.code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertEqual((error.failed, error.unknown), (1, 0))
        self.assertEqual(self.group.log, [])
        sent = [one for member in self.group.members.values() for one in member.received]
        self.assertEqual([one for one in sent if not isinstance(one, MetadataRequest)], [])
        return str(error)

    def entries(self) -> list[Entry]:
        """All of the log."""
        found: list[Entry] = []

        async def read() -> None:
            async for entry in self.client.tail(0, follow=False):
                found.append(entry)

        done = Deferred.fromCoroutine(read())
        self.group.run(3.0)
        self.successResultOf(done)
        return found


class TimedTests(EnvelopingCase):
    """C{envelope=True}."""

    def test_every_append_has_an_envelope(self) -> None:
        """One, many, with an expected end, with a producer: all have the time and the headers of the call."""
        self.done(self.client.append(b"one", headers=HEADERS))
        self.done(self.client.append_many([b"two", bytearray(b"three"), b""], headers={"k": b"v"}))
        self.done(self.client.append(b"four", expected_end=3, headers=HEADERS))
        self.done(self.client.append(b"five", producer="p", sequence=0))
        entries = [one for one in self.entries() if not one.body.startswith(b"SESS")]
        self.assertEqual([one.body for one in entries], [b"one", b"two", b"three", b"", b"four", b"five"])
        self.assertEqual({one.timestamp for one in entries}, {NOW_MS})
        self.assertEqual(
            [one.headers for one in entries], [HEADERS, *[{"k": b"v"}] * 3, HEADERS, {}]
        )
        self.assertEqual(self.done(self.client.get(0)), entries[0])

    def test_a_record_has_the_envelope(self) -> None:
        """The record has the envelope and the body: what Java reads, as one body."""
        self.done(self.client.append(b"one", headers=HEADERS))
        self.assertEqual(self.group.log, [envelope_head(NOW_MS, HEADERS) + b"one"])

    def test_a_named_reader_gets_the_envelope(self) -> None:
        """It hands out what a tail does."""
        self.done(self.client.append(b"one", headers=HEADERS))
        reader = self.client.reader("billing", follow=False)
        call = reader.next_batch()
        self.group.run(1.0)
        (entry,) = self.successResultOf(call)
        self.assertEqual((entry.body, entry.timestamp, entry.headers), (b"one", NOW_MS, HEADERS))
        reader.close()
        self.group.run(1.0)

    def test_commands_have_no_envelope(self) -> None:
        """A command for a state machine is sent as it is: the machine is not a reader."""
        for member in self.group.members.values():
            member.wire_version = 1 | WIRE_FLAG_MACHINE
        call = self.client.submit_command(ENVELOPE_MAGIC)
        self.assertEqual(self.done(call), b"0:" + ENVELOPE_MAGIC)

    def test_a_key_is_a_header(self) -> None:
        """It is the header of that name; another one beside it is refused, and so is what is not bytes."""
        self.assertIn("8192", self.refused(self.client.append(b"x", key=b"k" * 8192)))
        self.done(self.client.append(b"one", key=b"user-7", headers=HEADERS))
        self.done(self.client.append_many([b"two", b"three"], key=bytearray(b"user-8")))
        self.done(self.client.append(b"four", headers={"key": b"user-9"}))
        self.done(self.client.append(b"five"))
        entries = self.entries()
        self.assertEqual([one.key for one in entries], [b"user-7", b"user-8", b"user-8", b"user-9", None])
        self.assertEqual(entries[0].headers, {"key": b"user-7", **HEADERS})
        self.assertRaises(ValueError, self.client.append, b"x", key=b"a", headers={"key": b"b"})
        error = self.assertRaises(TypeError, self.client.append_many, [b"x"], key="a")
        self.assertIn("write bytes, not str", str(error))

    def test_wrong_headers_are_refused(self) -> None:
        """Each is refused with its reason, whatever else the append expects; nothing is sent."""
        for headers, said in WRONG:
            for options in ({}, {"expected_end": 0}, {"producer": "p", "sequence": 0}):
                self.assertIn(said, self.refused(self.client.append(b"a", headers=headers, **options)))
            self.assertIn(said, self.refused(self.client.append_many([b"a"], headers=headers)))

    def test_an_envelope_counts_in_the_bound(self) -> None:
        """Body and envelope together have the bound of a body."""
        body = bytes(BODY_BYTES_MAX - ENVELOPE_BYTES_MIN + 1)
        for options in ({}, {"expected_end": 0}):
            said = self.refused(self.client.append(body, **options))
            self.assertIn(f"{BODY_BYTES_MAX + 1} bytes with its envelope of {ENVELOPE_BYTES_MIN}", said)
        self.done(self.client.append(body[1:]))

    def test_a_text_is_refused(self) -> None:
        """Refused as without envelopes."""
        for options in ({}, {"expected_end": 0}):
            call = self.client.append("text", headers={}, **options)  # type: ignore[arg-type]
            self.assertIn("a body must be bytes, not str", self.refused(call))


class WrongClockTests(EnvelopingCase):
    """A clock before 1970, or far away."""

    options = {"envelope": True, "wall_s": lambda: -3600.0}

    def test_a_wrong_clock_is_refused(self) -> None:
        """With a reason; nothing is sent."""
        for options in ({}, {"expected_end": 0}):
            said = self.refused(self.client.append(b"a", **options))
            self.assertIn("-3600000 ms since 1970", said)


class PlainTests(EnvelopingCase):
    """A client that was not asked for times."""

    options = {}

    def test_plain_bodies_stay_unchanged(self) -> None:
        """Bodies are sent as they are, and their entries have neither time nor headers."""
        bodies = [b"", b"a", b"\xff", ENVELOPE_MAGIC[:-1], b"\xff" * 30, b"a" + ENVELOPE_MAGIC]
        self.done(self.client.append_many(bodies))
        self.assertEqual(self.group.log, bodies)
        entries = self.entries()
        self.assertEqual([one.body for one in entries], bodies)
        self.assertEqual({(one.timestamp, len(one.headers)) for one in entries}, {(None, 0)})
        self.assertEqual({type(one) for one in entries}, {Entry})

    def test_headers_work_without_times(self) -> None:
        """They work without times."""
        self.done(self.client.append(b"a", headers=HEADERS))
        (entry,) = self.entries()
        self.assertEqual((entry.body, entry.timestamp, entry.headers), (b"a", None, HEADERS))

    def test_bodies_that_look_so(self) -> None:
        """A body that begins with the magic is put into an envelope, so it is read as it was appended."""
        whole = envelope_head(NOW_MS, HEADERS) + b"x"
        bodies = [b"a", ENVELOPE_MAGIC, whole, envelope_head(None, {}) + whole, b"\xff\xff"]
        self.done(self.client.append_many(bodies))
        self.done(self.client.append(whole))
        self.done(self.client.append(whole, expected_end=5))
        self.assertEqual([one.body for one in self.entries()], [*bodies, whole, whole])
        self.assertEqual({(one.timestamp, len(one.headers)) for one in self.entries()}, {(None, 0)})
        self.assertEqual([self.group.log[0], self.group.log[4]], [b"a", b"\xff\xff"])

    def test_wrong_headers_are_refused(self) -> None:
        """As with times."""
        for headers, said in WRONG:
            self.assertIn(said, self.refused(self.client.append(b"a", headers=headers)))


class AnyBodyTests(SynchronousTestCase):
    """The promise of a reader, for any bytes."""

    @settings(max_examples=60)
    @given(
        st.lists(st.binary(max_size=30) | st.binary(max_size=30).map(lambda rest: ENVELOPE_MAGIC + rest) |
                 st.binary(max_size=9).map(lambda rest: envelope_head(7, {"a": b"b"}) + rest), min_size=1),
        st.booleans(), st.none() | st.just(HEADERS),
    )
    def test_read_as_appended(self, bodies: list[bytes], is_timed: bool, headers: Any) -> None:
        """Every body of a client of ours is read as it was appended."""
        enveloping = Enveloping(is_timed=is_timed, wall_s=lambda: NOW_MS / 1000)
        sent, problem = enveloping.enclose(bodies, headers)
        self.assertEqual(problem, "")
        entries = entries_of(batch_of(*sent))
        self.assertEqual([one.body for one in entries], bodies)
        self.assertEqual([one.timestamp for one in entries], [NOW_MS if is_timed else None] * len(bodies))
        self.assertEqual([one.headers for one in entries], [headers or {}] * len(bodies))

    @settings(max_examples=60)
    @given(st.lists(st.binary(max_size=60).map(lambda rest: ENVELOPE_MAGIC + rest), min_size=1))
    def test_a_damaged_envelope_is_shown_as_body(self, bodies: list[bytes]) -> None:
        """A body of another program that only begins as an envelope is shown as it is."""
        self.assertEqual([one.body for one in entries_of(batch_of(*bodies))], bodies)

    def test_control_entries_have_no_envelope(self) -> None:
        """Entries of members have no envelope."""
        whole = envelope_head(NOW_MS, HEADERS) + b"x"
        batch = batch_of(whole)
        channel = TERM_START_CHANNEL.to_bytes(4, "big", signed=True)
        records = batch.records[:CHANNEL_AT] + channel + batch.records[CHANNEL_AT + 4 :]
        (entry,) = entries_of(EntryBatch(first_index=5, count=1, term=3, records=records))
        self.assertEqual((entry.body, entry.timestamp), (whole, None))

    def test_an_entry_is_a_value(self) -> None:
        """An entry with headers is a value: equal, hashable, picklable, an C{Entry}."""
        one = EnvelopedEntry(index=1, term=1, pos=0, body=b"a", timestamp=7, headers={"a": b"b"})
        again = pickle.loads(pickle.dumps(one))
        self.assertEqual((one, hash(one)), (again, hash(again)))
        self.assertIsInstance(one, Entry)
        self.assertNotEqual(one, Entry(index=1, term=1, pos=0, body=b"a"))


class FacesTests(SynchronousTestCase):
    """The other faces pass it all on."""

    def test_the_blocking_client_passes_headers(self) -> None:
        """Both appends; a wrong header before a body is taken."""
        with LiveGroup().open(envelope=True) as log:
            log.append(b"a", headers=HEADERS)
            log.append_many([b"b", b"c"], headers={"k": b"v"})
            self.assertRaises(ValueError, log.append, b"x", headers={"key": b"v"}, key=b"w")
            entries = list(log.tail(0))
            self.assertEqual([one.body for one in entries], [b"a", b"b", b"c"])
            self.assertEqual([one.headers for one in entries], [HEADERS, {"k": b"v"}, {"k": b"v"}])
            self.assertTrue(all(one.timestamp for one in entries))
            for headers, said in WRONG:
                bodies = iter([b"x"])
                error = self.assertRaises(AppendFailed, log.append_many, bodies, headers=headers)
                self.assertIn(said, str(error))
                self.assertEqual(next(bodies), b"x")
                self.assertIn(said, str(self.assertRaises(AppendFailed, log.append, b"x", headers=headers)))
            self.assertEqual(len(list(log.tail(0))), 3)
            log.append(b"d", key=b"u")
            log.append_many([b"e"], key=b"v")
            self.assertEqual([one.key for one in log.tail(2)], [None, b"u", b"v"])

    def test_the_asyncio_client_passes_headers(self) -> None:
        """The client for asyncio writes headers and keys, and reads them back."""

        async def story(group: ServedGroup) -> None:
            async with group.open(envelope=True) as log:
                await log.append(b"a", headers=HEADERS)
                await log.append_many([b"b", b"c"], headers={"k": b"v"})
                await log.append(b"d", expected_end=2, headers=HEADERS)
                entries = [one async for one in log.tail(0, follow=False)]
                self.assertEqual([one.body for one in entries], [b"a", b"b", b"c", b"d"])
                self.assertEqual([one.headers for one in entries],
                                 [HEADERS, {"k": b"v"}, {"k": b"v"}, HEADERS])
                self.assertTrue(all(one.timestamp for one in entries))
                for headers, said in WRONG:
                    with self.assertRaises(AppendFailed) as raised:
                        await log.append(b"x", headers=headers)
                    self.assertIn(said, str(raised.exception))
                self.assertEqual(len(group.log), 4)
                await log.append(b"e", key=b"u")
                await log.append_many([b"f"], key=b"v")
                await log.append(b"g", expected_end=5, key=b"w")
                keys = [one.key async for one in log.tail(4, follow=False)]
                self.assertEqual(keys, [b"u", b"v", b"w"])

        self.assertEqual(play(story), [])

    def test_the_twisted_client_passes_headers(self) -> None:
        """The client with Deferreds writes headers and keys, and reads them back."""
        clock = Clock()
        group = FakeGroup(clock)
        log = LogClient(group.peers, reactor=clock, endpoint_for=group.endpoint_for, envelope=True)
        one, many = log.append(b"a", headers=HEADERS), log.append_many([b"b"], headers={"k": b"v"})
        keyed = (log.append(b"c", key=b"u"), log.append_many([b"d"], key=b"v"))
        group.settle()
        self.successResultOf(one)
        self.successResultOf(many)
        for call in keyed:
            self.successResultOf(call)
        for index, body, headers in (
            (0, b"a", HEADERS), (1, b"b", {"k": b"v"}), (2, b"c", {"key": b"u"}), (3, b"d", {"key": b"v"}),
        ):
            read = log.get(index)
            group.settle()
            entry = self.successResultOf(read)
            self.assertEqual((entry.body, entry.headers), (body, headers))
            self.assertIsNotNone(entry.timestamp)
        log.close()
