# -*- test-case-name: tests.spark.test_members -*-
"""Mode C{bootstrap}: every committed entry once, whatever members do; and trouble in words."""

from __future__ import annotations

import struct
import threading
from contextlib import closing
from typing import Any
from zlib import crc32

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.log import DamageError, DataLossError, ReadError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger import members
from dledger.spark.ledger.member_connection import Trouble, record_starts
from dledger.spark.ledger.members import parse_bootstrap
from dledger.spark.scans.scan import Scan
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import (
    MetadataRequest,
    PullRequest,
    PullResponse,
    Request,
    Response,
)
from protocols.wire.ledger.push import encode_response_frame
from tests.spark.ledgers import mixed_bodies, scanned
from tests.spark.members import Cut, FakeMember, records_of
from tests.spark.test_scan import LedgerCase

_FIELDS = (2, 3, 4, 1, 5, 6, 7)


def rows_of(records: list[bytes]) -> list[tuple[Any, ...]]:
    """What must be read."""
    found = []
    for record in records:
        header = struct.unpack_from(">iiqqqiiii", record)
        found.append((*[header[number] for number in _FIELDS], record[48:]))
    return found


class BootstrapTests(SynchronousTestCase):
    """The option."""

    def test_sound(self) -> None:
        """Ids and addresses, in the two common shapes."""
        expected = {"n0": "10.0.0.1:20911", "n1": "[::1]:20912"}
        self.assertEqual(parse_bootstrap("n0-10.0.0.1:20911;n1-[::1]:20912"), expected)
        self.assertEqual(parse_bootstrap(" n0-10.0.0.1:20911, n1-[::1]:20912;"), expected)

    def test_wrong(self) -> None:
        """The piece that is wrong is named."""
        for text, words in (
            ("10.0.0.1:20911", "'10.0.0.1:20911' is not id-host:port"), ("n0-h", "is not id-host:port"),
            ("n0-h:0", "is not"), ("n0-h:70000", "is not"), (";", "no member named"),
            ("n0-h:1;n0-h:2", "member 'n0' is given twice"),
        ):
            with self.subTest(text=text):
                error = self.assertRaises(OptionError, Scan.of, {"bootstrap": text})
                self.assertIn(words, str(error))


class StartTests(SynchronousTestCase):
    """Where records begin."""

    def test_found(self) -> None:
        """Equal sizes, mixed sizes, one, none."""
        for bodies in ([b"x" * 100] * 50, [b""] * 3, mixed_bodies(200, seed=4), [b"one"], []):
            records = records_of(list(bodies))
            expected = np.cumsum([0, *map(len, records)]).tolist()
            found = record_starts(memoryview(b"".join(records)), len(records))
            self.assertEqual((found.tolist(), found.dtype), (expected, np.int64))

    def test_sizes_that_lie(self) -> None:
        """One wrong size, and every cut, are noticed; nothing is read beyond the end."""
        data = b"".join(records_of([b"abc"] * 5))
        for at in range(0, len(data), 51):
            for size in (-1, 0, 47, 50, 52, 2**31 - 1):
                wrong = data[: at + 4] + struct.pack(">i", size) + data[at + 8 :]
                self.assertRaises(Trouble, record_starts, memoryview(wrong), 5)
        for cut in range(1, len(data)):
            self.assertRaises(Trouble, record_starts, memoryview(data[:cut]), 5)
        self.assertRaises(Trouble, record_starts, memoryview(data + b"\0"), 5)


class GroupTests(LedgerCase):
    """Three members, n0 leads."""

    def setUp(self) -> None:
        self.silences = 0
        self.records = records_of(mixed_bodies(300, seed=2))
        self.rows = rows_of(self.records)
        self.members = {f"n{number}": FakeMember(f"n{number}", self.records) for number in range(3)}
        self.members["n0"].role = "leader"
        peers = {member_id: member.address for member_id, member in self.members.items()}
        for member in self.members.values():
            member.peers = peers
            self.addCleanup(member.close)
        self.options: dict[str, object] = {
            "bootstrap": ";".join(f"{member_id}-{address}" for member_id, address in peers.items()),
            "requestTimeoutMs": 20_000,
        }

    def pulled_from(self) -> set[str]:
        """Who was asked for entries."""
        return {member_id for member_id, member in self.members.items() if member.pulls}

    def impatient(self) -> dict[str, object]:
        """Options with which trouble ends soon."""
        return {**self.options, "requestTimeoutMs": 200}

    def test_value_by_value(self) -> None:
        """All columns, whatever the cuts; never from the leader while followers serve."""
        for options in ({}, {"fetchBytes": 1}, {"fetchBytes": 900}, {"minPartitions": 7},
                        {"partitionBytes": 3000}, {"verifyCrc": "true"}):
            with self.subTest(**options):
                self.assertEqual(scanned({**self.options, **options}), self.rows)
        self.assertEqual(self.pulled_from(), {"n1", "n2"})
        wanted = [("term", "bigint"), ("index", "bigint")]
        self.assertEqual(scanned(self.options, wanted), [(row[1], row[0]) for row in self.rows])

    def test_read_from(self) -> None:
        """The leader alone, if one says so; others when it is away."""
        self.assertEqual(scanned({**self.options, "readFrom": "leader"}), self.rows)
        self.assertEqual(self.pulled_from(), {"n0"})
        self.members["n0"].close()
        self.assertEqual(scanned({**self.options, "readFrom": "leader"}), self.rows)

    def test_removed(self) -> None:
        """A member that was removed is not heard; those that it names are. Its own log is not the group's."""
        for name in ("n0", "n1"):
            self.members[name].committed, self.members[name].health = 199, "removed: stop it"
        self.members["n2"].peers = {"n2": self.members["n2"].address}
        only = f"n0-{self.members['n0'].address}"
        self.assertEqual(scanned({**self.options, "bootstrap": only}), self.rows)
        self.members["n2"].close()
        for loses in (False, True):
            given = {**self.impatient(), "failOnDataLoss": str(not loses).lower()}
            error = self.assertRaises(ReadError, scanned, given)
            self.assertIn("n0: it was removed from the group, and its log ends there", str(error))

    def test_removed_meanwhile(self) -> None:
        """A stream, which asks for the end again and again, learns of it."""
        self.patch(members, "_ASK_MORE_S", 0.0)
        with closing(Scan.of({name: str(value) for name, value in self.impatient().items()}).log()) as log:
            self.assertEqual(log.extent().end, 300)
            for member in self.members.values():
                member.health = "removed: stop it"
            self.assertRaises(ReadError, log.extent)

    def test_one_is_named(self) -> None:
        """One member is enough to find the others."""
        only = f"n0-{self.members['n0'].address}"
        self.assertEqual(scanned({**self.options, "bootstrap": only}), self.rows)
        self.assertTrue(self.pulled_from() & {"n1", "n2"})

    def test_committed(self) -> None:
        """The highest committed index of all counts; who lags behind is left for another."""
        self.members["n0"].committed = 250
        self.members["n1"].committed = 100
        self.members["n2"].committed = 180
        self.assertEqual(scanned({**self.options, "fetchBytes": 2000}), self.rows[:251])
        self.assertIn("n0", self.pulled_from())

    def test_members_die(self) -> None:
        """Connections that end at a pull, in the middle of a frame too: nothing is lost or comes twice."""
        for member in self.members.values():
            self.stumble(member)
        self.assertEqual(scanned({**self.options, "fetchBytes": 1500}), self.rows)

    def stumble(self, member: FakeMember) -> None:
        """Every third pull ends the connection, half of these with a part of a frame."""
        count = 0

        def answer(request: Request) -> Response | Cut | None:
            nonlocal count
            count += isinstance(request, PullRequest)
            if count % 3 == 2:
                count += 1
                return None if count % 2 else Cut(b"\xd1\x01\x04\x01\0\0")
            return member.sound_answer(request)

        member.answer = answer

    def test_silent_in_the_middle_of_a_frame(self) -> None:
        """
        A member that sends a part of an answer and then nothing is left when C{requestTimeoutMs} is over.
        """
        for member in (self.members["n1"], self.members["n2"]):
            self.fall_silent(member)
        options = {**self.options, "fetchBytes": 1500, "requestTimeoutMs": 1000}
        self.assertEqual(scanned(options), self.rows)
        self.assertIn(self.silences, (1, 2))

    def fall_silent(self, member: FakeMember) -> None:
        """The second pull gets half of its answer; other connections are served."""
        count = 0

        def answer(request: Request) -> Response | bytes:
            nonlocal count
            whole = member.sound_answer(request)
            count += isinstance(request, PullRequest)
            if count != 2:
                return whole
            count += 1
            self.silences += 1
            frame = encode_response_frame(whole, 1)
            return frame[: len(frame) // 2]

        member.answer = answer

    def test_one_dies_in_the_middle(self) -> None:
        """The process that was read from is gone; the others have the rest."""
        scan = Scan.of({name: str(value) for name, value in self.options.items()} | {"fetchBytes": "700"})
        (part,) = scan.parts(0, 300)
        for member in self.members.values():
            member.pulls.clear()  # planning pulls, too
        indexes: list[int] = []
        gone = set()
        for batch in scan.batches(part):
            indexes += batch.column(0).to_pylist()
            if len(indexes) > 50 and not gone:
                gone = self.pulled_from()
                for member_id in gone:
                    self.members[member_id].close()
        self.assertEqual((indexes, len(gone)), (list(range(300)), 1))

    def test_answers_that_make_no_sense(self) -> None:
        """A member that sends something else is left; alone, it is named with its fault."""
        bad = self.members["n1"]
        good = bad.sound_answer

        def shifted(request: PullRequest) -> Response:
            first = request.begin_index + 1
            entries = bad.batch(PullRequest(begin_index=first, end_index=299, max_bytes=99))
            return PullResponse(committed_index=299, entries=entries)

        def raw(text: str) -> Any:
            return lambda _: bytes.fromhex(text)

        for name, answer, words in (
            ("another index", shifted, "it sent 1 from 1 on"),
            ("a refusal", lambda _: PullResponse(code=ResponseCode.DISK_ERROR), "it refuses: DISK_ERROR"),
            ("an unknown refusal", raw("d1010401 00000002 0000003c" + 60 * "00"), "it refuses: 0"),
            ("another frame", raw("d1010101 00000002 00000000"), "it answered with frame d1010101"),
            ("another opaque", raw("d1010401 00000009 00000000"), "opaque=9"),
            ("a short frame", raw("d1010401 00000002 00000001 78"), "an answer of 1 bytes"),
            ("nothing committed", lambda _: PullResponse(committed_index=5), "it knows of 5"),
        ):
            def say(request: Request, answer: Any = answer) -> Any:
                return good(request) if isinstance(request, MetadataRequest) else answer(request)

            bad.answer = say
            with self.subTest(name=name):
                self.assertEqual(scanned(self.options), self.rows)
                alone = {**self.impatient(), "bootstrap": f"n1-{bad.address}"}
                bad.peers = {}
                error = self.assertRaises(ReadError, scanned, alone)
                self.assertIn(words, str(error))
                self.assertIn("n1: ", str(error))

    def test_records_that_contradict_each_other(self) -> None:
        """What is wrong in a record, or between two, is damage, and the member is named."""
        for index, at, word in ((100, 0, b"\0\0\0\2"), (101, 8, bytes(8)), (102, 16, bytes(8)),
                                (103, 24, bytes(8))):
            with self.subTest(at=at):
                record = self.records[index]
                for member in self.members.values():
                    member.records = list(self.records)
                    member.records[index] = record[:at] + word + record[at + len(word) :]
                options = {**self.options, "startingOffsets": 90, "endingOffsets": 130}
                error = self.assertRaises(DamageError, scanned, options)
                self.assertRegex(str(error), f"entry {index} is damaged: answer of member n[12] at")
                self.warned()
                found = scanned({**options, "failOnDamage": "false"})
                self.assertEqual(found, [row for row in self.rows[90:130] if row[0] != index])

    def test_nobody_answers(self) -> None:
        """Everyone's trouble is listed."""
        for member in self.members.values():
            member.close()
        error = self.assertRaises(ReadError, scanned, self.impatient())
        for word in ("no member of group 'default' answers", "n0: ", "n1: ", "n2: "):
            self.assertIn(word, str(error))

    def test_another_group(self) -> None:
        """A refusal for ever is reported at once, however patient one is."""
        options = {**self.options, "group": "g1", "requestTimeoutMs": 86_400_000}
        error = self.assertRaises(ReadError, scanned, options)
        self.assertIn("it refuses: UNKNOWN_GROUP", str(error))

    def test_expired(self) -> None:
        """Lost is what no member has any more."""
        self.members["n1"].begin, self.members["n2"].begin, self.members["n0"].begin = 90, 60, 40
        self.assertEqual(scanned(self.options), self.rows[40:])
        scan = Scan.of({name: str(value) for name, value in self.options.items()})
        loose = Scan.of({**{name: str(value) for name, value in self.options.items()},
                         "failOnDataLoss": "false"})
        parts = scan.parts(40, 300)
        self.members["n0"].begin = 70
        error = self.assertRaises(DataLossError, lambda: [list(scan.batches(part)) for part in parts])
        self.assertIn("offsets 40..59 have expired", str(error))
        said = self.warned()
        found = [value for part in parts for batch in loose.batches(part)
                 for value in batch.column(0).to_pylist()]
        self.assertEqual(found, list(range(60, 300)))
        self.assertEqual(len(said), 1)

    def test_slow_member_has_the_beginning(self) -> None:
        """Planning waits for the member whose entries the others no longer have."""
        self.patch(members, "_SLOW_S", 0.0)
        slow, asked = self.members["n0"], threading.Semaphore(0)
        for member_id in ("n1", "n2"):
            member = self.members[member_id]
            member.begin = 50

            def say(request: Request, member: FakeMember = member) -> Response:
                asked.release()
                return member.sound_answer(request)

            member.answer = say

        def late(request: Request) -> Response:
            if isinstance(request, MetadataRequest):
                self.assertTrue(asked.acquire(timeout=30) and asked.acquire(timeout=30))
            return slow.sound_answer(request)

        slow.answer = late
        scan = Scan.of({name: str(value) for name, value in self.options.items()})
        self.assertEqual((scan.extent().begin, scan.extent().note), (0, ""))
        self.assertEqual(scan.starting(scan.extent(), default="earliest"), 0)

    def test_beginning_without_a_member(self) -> None:
        """A member that is down may have earlier entries: that is said, in the error, too."""
        self.members["n0"].close()
        self.members["n1"].begin = self.members["n2"].begin = 50
        said = self.warned()
        self.assertEqual(scanned(self.options), self.rows[50:])
        self.assertRegex(said[0], "the first offset is 50. Not heard, and may have earlier ones: n0: .*conn")
        error = self.assertRaises(DataLossError, scanned, {**self.options, "startingOffsets": 20})
        words = "offsets 20..49 have expired.*Not heard, and may have earlier ones: n0: "
        self.assertRegex(str(error), words)
        said.clear()
        self.assertEqual(scanned({**self.options, "startingOffsets": 60}), self.rows[60:])
        self.assertEqual(said, [])

    def test_no_majority(self) -> None:
        """One of three does not know how far the group has committed; it is read on request."""
        self.members["n0"].close()
        self.members["n1"].close()
        error = self.assertRaises(ReadError, scanned, self.impatient())
        for word in ("only n2 of group 'default' answered within 0.2 s", "not a majority", "n0: ", "n1: ",
                     "failOnDataLoss=false"):
            self.assertIn(word, str(error))
        said = self.warned()
        self.assertEqual(scanned({**self.impatient(), "failOnDataLoss": "false"}), self.rows)
        self.assertIn("which is not a majority", said[0])

    def test_java_members_cannot_be_heard(self) -> None:
        """They close the connection at the first native frame, and do not count."""
        for member_id in ("n0", "n1"):
            self.members[member_id].answer = lambda request: None
        self.assertEqual(scanned(self.impatient()), self.rows)

    def test_a_member_that_ends_is_no_java_member(self) -> None:
        """
        Who closes every connection, or whose new process answers already, or who has no place for us, counts
        for the majority.
        """
        self.members["n2"].committed = 100
        for role, is_silent, is_full in (("", True, False), ("follower", False, False), ("", False, True)):
            for member_id in ("n0", "n1"):
                member = self.members[member_id]
                member.answer = lambda request: None
                member.is_silent, member.remoting_role, member.is_full = is_silent, role, is_full
            with self.subTest(role=role, is_full=is_full):
                error = self.assertRaises(ReadError, scanned, self.impatient())
                self.assertRegex(str(error), "only n2 .*not a majority.* n0: connection closed without ")

    def test_a_member_away_for_a_moment(self) -> None:
        """Entries have not expired because the member that has them did not answer once."""
        self.members["n1"].begin = self.members["n2"].begin = 90
        scan = Scan.of({name: str(value) for name, value in self.options.items()})
        (part,) = scan.parts(0, 300)
        away, good = [True] * 3, self.members["n0"].sound_answer
        self.members["n0"].answer = lambda request: Cut(b"\xd1") if away and away.pop() else good(request)
        found = [value for batch in scan.batches(part) for value in batch.column(0).to_pylist()]
        self.assertEqual((found, away), (list(range(300)), []))

    def test_two_groups(self) -> None:
        """Members that name different ids are of different groups; ids that no quorum holds say nothing."""
        for number, member in enumerate(self.members.values()):
            member.group_id = f"{number:032x}"
        self.assertEqual(scanned(self.options), self.rows)
        for member_id, letter in (("n0", "a"), ("n1", "b")):
            self.members[member_id].group_id, self.members[member_id].is_group_known = letter * 32, True
        error = self.assertRaises(ReadError, scanned, self.impatient())
        self.assertIn(f"different groups: n0 is of {'a' * 32}, n1 is of {'b' * 32}", str(error))

    def test_proof(self) -> None:
        """By the id of the group and the last record, the same as a directory's."""
        for member in self.members.values():
            member.group_id, member.is_group_known = "c" * 32, True
        log = Scan.of({name: str(value) for name, value in self.options.items()}).log()
        self.addCleanup(log.close)
        log.extent()
        row = self.rows[99]
        self.assertEqual(log.proof(100), {
            "group_id": "c" * 32, "term": row[1], "pos": row[2], "size": row[3],
            "crc": crc32(self.records[99]),
        })
        self.assertEqual(log.proof(0), {"group_id": "c" * 32})

    def test_empty(self) -> None:
        """A group without entries."""
        for member in self.members.values():
            member.committed, member.begin = -1, -1
        self.assertEqual(scanned(self.options), [])
