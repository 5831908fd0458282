# -*- test-case-name: tests.spark.test_reader_place -*-
"""The place of a stream, kept by its group."""

from __future__ import annotations

import warnings
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.log import ScanWarning
from dledger.spark.formats.options import ScanOptions
from dledger.spark.ledger.reader_place import ReaderPlace
from dledger.spark.scans.scan import Scan
from dledger.spark.source import LogStreamReader
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java.json_bodies import decode_request, encode_response
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse
from protocols.wire.remoting import decode_command, encode_answer
from tests.spark.members import FakeMember, records_of


class Keeper(FakeMember):
    """
    Leads, and keeps readers.

    @ivar asked: what was asked, in order: what for, and the index.
    @ivar place: of the reader; None: it is not known.
    @ivar code: of its answers.
    """

    def __init__(self, member_id: str = "n0", records: list[bytes] | None = None) -> None:
        super().__init__(member_id, records or records_of([b"x"] * 10))
        self.role = "leader"
        self.asked: list[tuple[str, int]] = []
        self.place: int | None = None
        self.token = 0
        self.secret = ""
        self.code = ResponseCode.SUCCESS

    def _named(self, frame: bytes) -> bytes:
        command = decode_command(frame)
        if command.code != RequestCode.READER:
            return super()._named(frame)
        request = decode_request(RequestCode.READER, command.body)
        assert isinstance(request, ReaderRequest) and request.name == "etl" and not request.share
        self.asked.append((request.does, request.index))
        answer = ReaderResponse(code=self.code, reason="for this reason")
        if self.code is ResponseCode.SUCCESS:
            answer = self._reader(request)
        return encode_answer(command.opaque, encode_response(answer))

    def _reader(self, request: ReaderRequest) -> ReaderResponse:
        if request.does == "take":
            self.place = request.index if self.place is None else self.place
            self.token += 1
            self.secret = request.secret
        elif (request.does, request.token, request.secret) != ("commit", self.token, self.secret):
            return ReaderResponse(code=ResponseCode.LEASE_LOST, reason="another process has it")
        else:
            self.place = request.index + 1
        assert self.place is not None
        return ReaderResponse(token=self.token, begin_index=self.place, next_index=self.place)


class PlaceTests(SynchronousTestCase):
    """One leader, a follower, and a stream."""

    def setUp(self) -> None:
        self.keeper, self.follower = Keeper(), FakeMember("n1", records_of([b"x"] * 10))
        self.follower.remoting_role = "follower"
        for member in (self.keeper, self.follower):
            self.addCleanup(member.close)
        self.given: dict[str, Any] = {
            "bootstrap": f"n0-{self.keeper.address};n1-{self.follower.address}", "reader": "etl",
            "requestTimeoutMs": "2000",
        }

    def test_committed(self) -> None:
        """Each place once, by the leader, with one lease; a new reader begins there."""
        place = ReaderPlace(ScanOptions.of(self.given, is_stream=True))
        self.addCleanup(place.close)
        for index in (3, 3, 7):
            self.assertEqual(place.keep(index), "")
        self.assertEqual(self.keeper.asked, [("take", 3), ("commit", 6)])
        self.assertEqual(self.keeper.place, 7)

    def test_taken_again(self) -> None:
        """Another stream, or an operator, had the reader meanwhile."""
        first, second = (ReaderPlace(ScanOptions.of(self.given, is_stream=True)) for _ in "12")
        for one, index in ((first, 3), (second, 5), (first, 6), (second, 9)):
            self.addCleanup(one.close)
            self.assertEqual(one.keep(index), "")
            self.assertEqual(self.keeper.place, index)
        self.assertEqual(self.keeper.token, 4)

    def test_not_back(self) -> None:
        """A stream that begins again before the place leaves it, and says so, until it has passed it."""
        self.keeper.place = 7
        place = ReaderPlace(ScanOptions.of(self.given, is_stream=True))
        self.addCleanup(place.close)
        self.assertIn("does not go back", place.keep(3))
        self.assertEqual(place.keep(7), "")
        self.assertEqual(place.keep(8), "")
        self.assertEqual(self.keeper.asked, [("take", 3), ("commit", 7)])

    def test_refused(self) -> None:
        """It says why, and tries again the next time."""
        place = ReaderPlace(ScanOptions.of(self.given, is_stream=True))
        self.addCleanup(place.close)
        self.keeper.code = ResponseCode.FORBIDDEN
        self.assertEqual(place.keep(3), "n0 refuses: FORBIDDEN, for this reason")
        self.keeper.code = ResponseCode.SUCCESS
        self.assertEqual(place.keep(3), "")

    def test_no_leader(self) -> None:
        """Nobody leads: it says so, and the stream goes on."""
        self.keeper.role = "follower"
        place = ReaderPlace(ScanOptions.of(self.given, is_stream=True))
        self.assertIn("no leader found", place.keep(3))

    def test_stream(self) -> None:
        """When a batch is planned all before it is done; when it has ended, so is the batch."""
        reader = LogStreamReader(Scan.of({**self.given, "startingOffsets": "earliest"}, is_stream=True))
        self.addCleanup(reader.stop)
        start = reader.initialOffset()
        end = reader.latestOffset(start)
        self.assertTrue(reader.partitions(start, end))
        self.assertEqual((self.keeper.asked, self.keeper.place), ([("take", 0)], 0))
        reader.commit(end)
        self.assertEqual((self.keeper.asked[1:], self.keeper.place), ([("commit", 9)], 10))
        self.assertIsNone(reader.shipped_state()["_place"])

    def test_stream_goes_on(self) -> None:
        """A place that was not kept is a warning, once."""
        self.keeper.code = ResponseCode.UNSUPPORTED
        reader = LogStreamReader(Scan.of({**self.given, "startingOffsets": "earliest"}, is_stream=True))
        self.addCleanup(reader.stop)
        start = reader.initialOffset()
        end = reader.latestOffset(start)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.assertTrue(reader.partitions(start, end))
            reader.commit(end)
        (warning,) = [str(one.message) for one in said if issubclass(one.category, ScanWarning)]
        self.assertIn("reader 'etl': its place was not kept", warning)
        self.assertEqual(len(self.keeper.asked), 2)

    def test_without(self) -> None:
        """No option, no order."""
        del self.given["reader"]
        reader = LogStreamReader(Scan.of({**self.given, "startingOffsets": "earliest"}, is_stream=True))
        self.addCleanup(reader.stop)
        start = reader.initialOffset()
        reader.partitions(start, reader.latestOffset(start))
        self.assertEqual(self.keeper.asked, [])
