# -*- test-case-name: tests.spark.test_lag -*-
"""How far a query is behind: the numbers, and what Spark's progress reports of them."""

from __future__ import annotations

import json
import os
from threading import Event
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.log import DamageError
from dledger.spark.lag import GroupLag, LagListener, lag_of
from dledger.spark.scans.scan import Scan
from dledger.spark.source import LogStreamReader
from protocols.wire.fastjson import JsonObject
from tests.spark.ledgers import mixed_bodies, plain_rows
from tests.spark.members import FakeMember, records_of
from tests.spark.sessions import SparkCase, patiently
from tests.spark.test_commit_log import BrokerLog
from tests.spark.test_scan import LedgerCase


def progress_of(*sources: tuple[object, object]) -> JsonObject:
    """A progress with the pairs of the last batch's end and the end of the log, as Spark writes them."""
    return {"sources": [{"endOffset": json.dumps(ended), "latestOffset": json.dumps(latest)}
                        for ended, latest in sources]}


def offset(number: int, **proof: object) -> JsonObject:
    """An offset of the group C{g}."""
    return {"g": number, "proof.g": proof}


class NumberTests(SynchronousTestCase):
    """From offsets as they may be."""

    def test_entries_and_bytes(self) -> None:
        """From the end of one record to the end of the other."""
        found = lag_of(progress_of((offset(10, pos=900, size=100), offset(30, pos=5000, size=60))))
        self.assertEqual(found, [GroupLag("g", entries=20, bytes=4060)])

    def test_from_the_beginning(self) -> None:
        """Before the first entry there is no record, and no byte."""
        found = lag_of(progress_of((offset(0, group_id="x"), offset(30, pos=5000, size=60))))
        self.assertEqual(found, [GroupLag("g", entries=30, bytes=5060)])

    def test_nothing_left(self) -> None:
        """Whatever the proofs know; and a log that is shorter than what was read has nothing either."""
        for ended, latest in ((offset(30), offset(30)), ({"g": 30}, offset(30)), (offset(30), offset(20))):
            self.assertEqual(lag_of(progress_of((ended, latest))), [GroupLag("g", entries=0, bytes=0)])

    def test_unknown_bytes(self) -> None:
        """After an unreadable record, and an offset without a proof: not known, which is not 0."""
        known = offset(30, pos=5000, size=60)
        for ended, latest in (({"g": 5}, known), (offset(5), known), (offset(5, pos=1, size=50), offset(30))):
            self.assertEqual(lag_of(progress_of((ended, latest)))[0], GroupLag("g", entries=25, bytes=None))

    def test_unknown_kind(self) -> None:
        """One proof says whether offsets are entries or bytes; without any, neither number is reported."""
        for ended in ({"g": 5}, offset(5), offset(0)):
            self.assertEqual(lag_of(progress_of((ended, offset(30))))[0], GroupLag("g", None, None))
        for ended, latest in ((offset(5, bytes=5, crc=1), offset(30)), (offset(5), offset(30, bytes=30))):
            self.assertEqual(lag_of(progress_of((ended, latest)))[0], GroupLag("g", None, 25))

    def test_other_sources(self) -> None:
        """Other formats, and sources that have nothing to report, are left out; the order stays."""
        mine = offset(1, pos=0, size=50), offset(2, pos=50, size=50)
        found = lag_of(progress_of(
            ({"topic": {"0": 5}}, {"topic": {"0": 9}}), mine, (None, mine[1]), (mine[0], None), (7, 9), mine,
        ))
        self.assertEqual(found, 2 * [GroupLag("g", entries=1, bytes=50)])
        words: JsonObject = {"sources": [{"endOffset": "at 5", "latestOffset": "at 9"}, {}]}
        self.assertEqual((lag_of(words), lag_of(None)), ([], []))

    def test_confusing_names(self) -> None:
        """A group whose name looks like a proof's."""
        found = lag_of(progress_of((
            {"proof.g": 1, "proof.proof.g": {"pos": 0, "size": 50}},
            {"proof.g": 3, "proof.proof.g": {"pos": 100, "size": 50}},
        )))
        self.assertEqual(found, [GroupLag("proof.g", entries=2, bytes=100)])


class ReaderTests(LedgerCase):
    """From the reader's own reports, without Spark."""

    def reader(self, path: str = "", **options: str) -> LogStreamReader:
        """Of a directory, or of members; closed at the end."""
        place = {"path": path} if path else {}
        reader = LogStreamReader(
            Scan.of({**place, "startingOffsets": "earliest", **options}, is_stream=True))
        self.addCleanup(reader.stop)
        return reader

    def test_ledger(self) -> None:
        """What is committed counts, not what is written; an empty log has nothing to read."""
        reader = self.reader(self.path)
        start = reader.initialOffset()
        self.assertEqual(lag_of(progress_of((start, reader.reportLatestOffset()))),
                         [GroupLag("default", entries=0, bytes=0)])
        self.ledger.fill(100)
        self.ledger.commit(79)
        last = plain_rows(self.path, 80)[-1]
        self.assertEqual(lag_of(progress_of((start, reader.reportLatestOffset()))),
                         [GroupLag("default", entries=80, bytes=last[2] + last[3])])

    def test_damaged_end(self) -> None:
        """
        The last record is not readable: a limited query that is far from it goes on; its lag has no bytes.
        """
        self.ledger.fill(100)
        self.ledger.commit()
        reader = self.reader(self.path, maxOffsetsPerTrigger="10")
        start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        pos, size = plain_rows(self.path)[-1][2:4]
        name = max(name for name in os.listdir(f"{self.path}/data") if int(name) <= pos)
        with open(f"{self.path}/data/{name}", "r+b") as file:
            file.seek(pos - int(name))
            file.write(bytes(size))
        following = reader.latestOffset(start, reader.getDefaultReadLimit())
        self.assertEqual(following["default"], 20)
        self.assertEqual(lag_of(progress_of((following, reader.reportLatestOffset()))),
                         [GroupLag("default", entries=80, bytes=None)])
        self.assertRaises(DamageError, reader.latestOffset, following, ReadAllAvailable())

    def test_members(self) -> None:
        """Of a group: up to its committed index."""
        records = records_of(mixed_bodies(300, seed=2))
        member = FakeMember("n0", records)
        self.addCleanup(member.close)
        member.peers = {"n0": member.address}
        reader = self.reader(bootstrap=f"n0-{member.address}", maxOffsetsPerTrigger="100")
        start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        wanted = GroupLag("default", entries=200, bytes=sum(map(len, records[100:])))
        self.assertEqual(lag_of(progress_of((start, reader.reportLatestOffset()))), [wanted])

    def test_commit_log(self) -> None:
        """Its offsets are bytes, so the number of messages is not reported."""
        log = BrokerLog(f"{self.mktemp()}/commitlog")
        for number in range(20):
            log.append(number)
        reader = self.reader(os.path.abspath(log.directory), format="rocketmq")
        start = reader.latestOffset(reader.initialOffset())
        before = log.end
        for number in range(20, 30):
            log.append(number)
        self.assertEqual(lag_of(progress_of((start, reader.reportLatestOffset()))),
                         [GroupLag("default", entries=None, bytes=log.end - before)])


class QueryTests(SparkCase):
    """From Spark."""

    def test_progress(self) -> None:
        """Each batch of a query leaves less; the listener hears the same as the progress says."""
        self.ledger.fill(300)
        self.ledger.commit(249)
        heard: dict[str, list[list[GroupLag]]] = {}
        is_heard = Event()

        def notify(name: str, lag: list[GroupLag]) -> None:
            heard.setdefault(name, []).append(lag)
            if not lag[0].entries:
                is_heard.set()

        listener = LagListener(notify)
        self.spark.streams.addListener(listener)
        self.addCleanup(self.spark.streams.removeListener, listener)
        found = patiently(self.run_query)
        rows = plain_rows(self.path)
        ends = [row[2] + row[3] for row in rows]
        self.assertEqual(found, [
            [GroupLag("default", entries=249 - last, bytes=ends[249] - ends[last])] for last in (99, 199, 249)
        ])
        self.assertTrue(is_heard.wait(60))
        self.assertEqual([one for one in heard["lagging"] if one in found], heard["lagging"])
        self.assertEqual(heard["lagging"][-3:], found)

    def run_query(self) -> list[Any]:
        """In batches of 100; the lag after each."""
        query = (
            self.spark.readStream.format("dledger").option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "100").load(self.path).writeStream.format("noop")
            .queryName("lagging").option("checkpointLocation", os.path.abspath(self.mktemp()))
            .trigger(availableNow=True).start()
        )
        try:
            if not query.awaitTermination(240):
                raise StreamingQueryException("the query has not ended in time")
            return [lag_of(progress) for progress in query.recentProgress]
        finally:
            query.stop()
