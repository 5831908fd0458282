# -*- test-case-name: tests.spark.test_entry_times -*-
"""The times of leaders as a column, wherever a part begins."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

from dledger.spark.formats.option_texts import OptionError
from dledger.spark.ledger import entry_times
from dledger.spark.ledger.columns import ENTRY_COLUMNS, TIME_COLUMN
from dledger.spark.scans import scan
from dledger.spark.scans.scan import Scan
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import TimeReset, decode_time_entry, encode_time_entry, with_reset
from tests.processes.ledgers import read_records
from tests.spark.archives import ship
from tests.spark.ledgers import plain_rows, scanned
from tests.spark.members import FakeMember
from tests.spark.test_scan import LedgerCase

#: 2026-01-02T03:04:05.678Z
NOW_MS = 1_767_323_045_678
TIME = [("index", "BIGINT"), ("time", "TIMESTAMP")]


class TimesTests(LedgerCase):
    """A log of several leaders, some of which note times."""

    def setUp(self) -> None:
        super().setUp()
        rng = random.Random(1)
        time_ms = NOW_MS
        for term in range(1, 7):
            for _ in range(6):
                if term not in (3, 6) and rng.random() < 0.6:
                    time_ms += rng.choice((0, 1, 1000))
                    self.ledger.append([encode_time_entry(time_ms)], term=term, channels=[TIME_CHANNEL])
                # One of a program, with the same bytes, is none.
                bodies = [b"x" * rng.randrange(60) for _ in range(rng.randrange(1, 9))]
                self.ledger.append([*bodies, encode_time_entry(0)], term=term)
        self.ledger.commit()
        self.known = self.folded()
        self.assertGreater(len({one for _, one in self.known}), 7)

    def folded(self) -> list[tuple[int, datetime | None]]:
        """Index and time of each entry of a program, by a walk over all records."""
        found: list[tuple[int, datetime | None]] = []
        last = (-1, 0)
        for index, term, _pos, _size, channel, _chain, _crc, body in plain_rows(self.path):
            if channel == TIME_CHANNEL:
                last = (term, decode_time_entry(body).time_ms)
            elif not channel:
                moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=last[1])
                found.append((index, moment if last[0] == term else None))
        return found

    def test_column(self) -> None:
        """After the others, on request alone; null where no leader has noted a time."""
        self.assertEqual(Scan.of({"path": self.path}).columns, ENTRY_COLUMNS)
        self.assertEqual(Scan.of({"path": self.path, "times": "true"}).columns, (*ENTRY_COLUMNS, TIME_COLUMN))
        self.assertEqual(scanned({"path": self.path, "times": "true"}, TIME), self.known)

    def test_parts(self) -> None:
        """However the range is cut, and from any entry on."""
        given = {"path": self.path, "times": "true"}
        for options in ({"minPartitions": 9}, {"maxRecordsPerPartition": 7}, {"fetchBytes": 1}):
            self.assertEqual(scanned({**given, **options}, TIME), self.known, options)
        for first in range(0, self.known[-1][0], 23):
            rows = scanned({**given, "startingOffsets": first}, TIME)
            self.assertEqual(rows, [row for row in self.known if row[0] >= first], first)

    def test_other_sources(self) -> None:
        """An archive, and members."""
        archive = os.path.abspath(self.mktemp())
        ship(self.path, archive)
        rows = scanned({"path": archive, "times": "true"}, TIME)
        self.assertEqual(rows, self.known[: len(rows)])
        self.assertGreater(len(rows), 50)
        member = FakeMember("n0", [record.raw for record in read_records(Path(self.path))])
        self.addCleanup(member.close)
        given = {"bootstrap": f"n0-{member.address}", "times": "true", "startingOffsets": 40}
        for split in ({}, {"minPartitions": 3}):
            self.assertEqual(scanned({**given, **split}, TIME), [row for row in self.known if row[0] >= 40])

    def test_resets(self) -> None:
        """No time before a reset is shown as later, wherever a part begins, and a search goes by that."""
        half = sorted(time for _, time in self.known if time is not None)[len(self.known) // 4]
        reset_ms = round(half.timestamp() * 1000)
        self.ledger.append([encode_time_entry(*with_reset((), reset_ms))], term=7, channels=[TIME_CHANNEL])
        self.ledger.append([b"after"], term=7)
        resets = [TimeReset(self.ledger.store.ledger_end_index - 1, reset_ms)]
        self.ledger.append([encode_time_entry(reset_ms + 5, resets)], term=7, channels=[TIME_CHANNEL])
        self.ledger.commit()
        known = [(index, None if time is None else min(time, half)) for index, time in self.known]
        known.append((self.folded()[-1][0], half))
        self.assertNotEqual(known[:-1], self.known)
        given = {"path": self.path, "times": "true"}
        self.assertEqual(scanned(given, TIME), known)
        self.assertEqual(scanned({**given, "minPartitions": 9}, TIME), known)
        self.assertEqual(scanned({**given, "startingTimestamp": reset_ms + 1}, TIME), [])

    def test_expired(self) -> None:
        """A time entry that has expired is not known."""
        first = self.ledger.expire(1)
        self.assertGreater(first, 0)
        self.assertEqual(scanned({"path": self.path, "times": "true"}, TIME), self.folded())

    def test_damage(self) -> None:
        """A damaged record may have been a time entry: no time up to the next one, not a wrong one."""
        rows = plain_rows(self.path)
        at = next(row for row in rows[20:] if row[4] == TIME_CHANNEL)
        after = next(row[0] for row in rows if row[0] > at[0] and row[4] == TIME_CHANNEL)
        names = sorted(os.listdir(f"{self.path}/data"))
        name = max(one for one in names if int(one) <= at[2])
        with open(f"{self.path}/data/{name}", "r+b") as file:
            file.seek(at[2] - int(name) + ENTRY_HEADER_SIZE - 4)
            file.write(b"\0\0\0\1")
        self.warned()
        rows_shown = scanned({"path": self.path, "times": "true", "failOnDamage": "false"}, TIME)
        expected = [(index, None if at[0] < index < after else time) for index, time in self.known]
        self.assertEqual(rows_shown, expected)

    def test_bounded(self) -> None:
        """What is read to look back has a bound."""
        given = {"path": self.path, "times": "true", "startingOffsets": self.known[-1][0] - 3}
        with mock.patch.object(entry_times, "LOOK_BACK_BYTES", 1), mock.patch.object(
            entry_times, "_FIRST_SPAN", 1
        ):
            self.assertEqual({time for _, time in scanned(given, TIME)}, {None})

    def test_starting_timestamp(self) -> None:
        """After the last entry that is known to be earlier, exactly; from the begin if none is."""
        given = {"path": self.path, "times": "true"}
        self.patch(scan, "_LOOK_ENTRIES", 3)
        for moment in sorted({time for _, time in self.known if time is not None}):
            ms = round(moment.timestamp() * 1000)
            earlier = [at for at, time in self.known if time is not None and time < moment]
            first = next(at for at, _ in self.known if at > max(earlier, default=-1))
            rows = scanned({**given, "startingTimestamp": ms}, TIME)
            self.assertEqual(rows[0][0], first, moment)

    def test_errors(self) -> None:
        """Messages have times of their own; the column needs the option, a begin by time one of two."""
        self.assertRaises(OptionError, Scan.of, {"path": "d", "times": "true", "format": "rocketmq"})
        error = self.assertRaises(OptionError, Scan.of, {"path": "d"}, wanted=TIME)
        self.assertIn("times=true", str(error))
        error = self.assertRaises(OptionError, Scan.of, {"path": "d", "startingTimestamp": str(NOW_MS)})
        self.assertIn("times=true", str(error))
        for bodies in ([b"x"], [b"x"] * 40):
            ledger = self.make()
            ledger.append(bodies)
            ledger.commit()
            with self.assertRaisesRegex(OptionError, "have no time"):
                scanned({"path": ledger.path, "times": "true", "startingTimestamp": NOW_MS})
