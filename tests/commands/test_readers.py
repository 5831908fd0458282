# -*- test-case-name: tests.commands.test_readers -*-
"""C{dledger readers}, and what C{dledger tail} shows of readers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from unittest import mock

import attrs

from dledger.client.values import Entry
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.readers import ReaderInfo
from tests.commands.fakes import CliCase


class ReadersTests(CliCase):
    """Show, move, forget."""

    def test_shown(self) -> None:
        """A table, or JSON."""
        self.assertExit(self.run_cli("readers"), 0, "no readers")
        self.log.reader_infos = (
            ReaderInfo("audit", 3, 7, (), 700), ReaderInfo("billing", 10, 0, ("h:1:x", "h:2:y")),
        )
        self.assertExit(self.run_cli("readers"), 0, "audit", "billing", "h:1:x, h:2:y", "lag")
        shown = json.loads(self.run_cli("readers", "--json").stdout)
        self.assertEqual(shown[0], {
            "name": "audit", "next_index": 3, "lag": 7, "holders": [], "lag_bytes": 700, "next_time_ms": None,
        })

    def test_time_of_the_next(self) -> None:
        """When the first entry was written that is not done; not of readers that have done all."""
        self.log.bodies = [b"x"] * 10
        self.log.reader_infos = (
            ReaderInfo("audit", 3, 7, (), 700), ReaderInfo("billing", 10, 0, ()),
            ReaderInfo("old", 99, 1, ()),
        )
        entry = self.log.entry

        def timed(index: int) -> Entry:
            return attrs.evolve(entry(index), time_ms=1_767_323_045_678)

        with mock.patch.object(self.log, "entry", timed):
            self.assertExit(self.run_cli("readers"), 0, "2026-01-02T03:04:05.678Z")
            shown = json.loads(self.run_cli("readers", "--json").stdout)
        self.assertEqual([one["next_time_ms"] for one in shown], [1_767_323_045_678, None, None])
        self.assertNotIn(("get", 10, "committed"), self.log.calls)

    def test_many(self) -> None:
        """Few entries are read for their times, and an error names few."""
        self.log.bodies = [b"x"] * 10
        self.log.reader_infos = tuple(ReaderInfo(f"r{at:03d}", at % 9, 1, ()) for at in range(300))
        self.assertExit(self.run_cli("readers"), 0, "r299")
        asked = [call for call in self.log.calls if call[0] == "get"]
        self.assertEqual((len(asked), {call[1] for call in asked}), (100, {0, 1, 2}))
        self.assertExit(self.run_cli("readers", "forget", "x"), 1, "r019, and 280 more")

    def test_moved(self) -> None:
        """To an entry, to the begin, to the end; anything else is an error of usage."""
        self.log.reader_infos = (ReaderInfo("billing", 3, 7, ()),)
        at = datetime(2026, 1, 31, 12, tzinfo=UTC)
        for to, index in (
            ("17", 17), ("begin", "begin"), ("end", "end"), ("2026-01-31T12:00:00", at),
            ("2026-01-31T14:00:00+02:00", at), ("-10", -10),
        ):
            self.assertExit(self.run_cli("readers", "move", "billing", to), 0, "billing goes on at 17")
            self.assertEqual(self.log.calls[-1], ("move_reader", "billing", index))
        shown = json.loads(self.run_cli("readers", "move", "billing", "end", "--json").stdout)
        self.assertEqual(shown, {"name": "billing", "next_index": 17})
        self.assertExit(self.run_cli("readers", "move", "billing", "x1"), 64, "begin or end, or a time")
        self.assertExit(self.run_cli("readers", "move", "billing", "-x"), 64, "begin or end")
        self.assertExit(self.run_cli("readers", "move", "billing", "9" * 19), 64, "too large")
        self.assertExit(self.run_cli("readers", "move", "biling", "0"), 1, "no reader has the name 'biling'")

    def test_forgotten(self) -> None:
        """By its name; an unknown one is no success, and nothing is sent."""
        self.assertExit(self.run_cli("readers", "forget", "billing"), 1, "no reader has the name 'billing'",
                        "there are none")
        self.log.reader_infos = (ReaderInfo("audit", 3, 7, ()), ReaderInfo("billing", 10, 0, ()))
        self.assertExit(self.run_cli("readers", "forget", "biling"), 1, "audit, billing")
        self.assertNotIn(("forget_reader", "biling"), self.log.calls)
        self.assertExit(self.run_cli("readers", "forget", "billing"), 0, "billing is forgotten")
        self.assertEqual(self.log.calls[-1], ("forget_reader", "billing"))
        shown = json.loads(self.run_cli("readers", "forget", "audit", "--json").stdout)
        self.assertEqual(shown, {"name": "audit", "is_forgotten": True})

    def test_refused(self) -> None:
        """With the reason of the leader."""
        self.log.fails = DLedgerError(ResponseCode.UNSUPPORTED, reason="n0 keeps no readers")
        self.assertExit(self.run_cli("readers"), 1, "UNSUPPORTED", "n0 keeps no readers")


class TailTests(CliCase):
    """Entries that members write for themselves are no data."""

    def test_control(self) -> None:
        """They are shown on request only."""
        self.log.bodies, self.log.control = [b"one", b"RDNM", b"two"], {1}
        shown = self.run_cli("tail", "--from", "0", "--format", "raw").stdout
        self.assertEqual(shown, "one\ntwo\n")
        shown = self.run_cli("tail", "--from", "0", "--format", "raw", "--control").stdout
        self.assertEqual(shown, "one\nRDNM\ntwo\n")
        shown = self.run_cli("tail", "--from", "0", "-n", "2", "--format", "raw").stdout
        self.assertEqual(shown, "one\ntwo\n")
