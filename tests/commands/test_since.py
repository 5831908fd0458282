# -*- test-case-name: tests.commands.test_since -*-
"""Times and headers on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.base.time_search import SKEW_MS
from dledger.cli.console import since
from dledger.cli.console.since import moment_of
from dledger.client import places
from protocols.wire.ledger.envelopes import envelope_head
from tests.commands.fakes import CliCase, FakeLog

#: 2026-01-02T03:04:05.678Z
NOW_MS = 1767323045678


def filled(log: FakeLog, times: Sequence[int | None]) -> FakeLog:
    """A log with one entry for each time; its body is its index."""
    log.bodies = [
        b"%d" % number if time_ms is None else envelope_head(time_ms, {}) + b"%d" % number
        for number, time_ms in enumerate(times)
    ]
    log.infos = (attrs.evolve(log.infos[0], committed_index=len(times) - 1),)
    return log


class TailSinceTests(CliCase):
    """C{dledger tail --since}."""

    def shown(self, *args: str) -> list[int]:
        """Bodies that are shown."""
        result = self.run_cli("tail", *args)
        self.assertExit(result, 0)
        return [int(line.split("\t")[-1]) for line in result.stdout.splitlines()]

    def test_since(self) -> None:
        """From a time on, in each way to write it."""
        filled(self.log, [NOW_MS + 1000 * number for number in range(100)])
        for text in ("2026-01-02T03:05:05.678", "2026-01-02T04:05:05.678+01:00", "2026-01-02 03:05:05.678Z",
                     "1767323105.678", "1767323105678"):
            self.assertEqual(self.shown("--since", text), list(range(60, 100)), text)
        self.assertEqual(self.shown("--since", "20260102"), list(range(100)))
        self.assertEqual(self.shown("--since", "2026-01-02T03:05:05.678", "-n", "3"), [60, 61, 62])
        self.assertEqual(self.shown("--since", "2026-01-03"), [])

    def test_until(self) -> None:
        """Up to a time; it ends there, a minute of the clocks later."""
        filled(self.log, [NOW_MS + 1000 * number for number in range(300)])
        self.assertEqual(self.shown("--from", "0", "--until", "1767323055678"), list(range(10)))
        between = ("--since", "1767323105678", "--until", "1767323108678")
        self.assertEqual(self.shown(*between), [60, 61, 62])
        self.assertEqual(self.shown(*between, "-n", "2"), [60, 61])
        self.assertEqual(self.shown("-f", *between), [60, 61, 62])
        self.assertEqual(self.shown("--from", "0", "--until", "2026-01-01"), [])
        self.assertEqual(self.shown("-n", "3", "--until", "2027-01-01"), [297, 298, 299])

    def test_until_with_clocks_that_differ(self) -> None:
        """All that are earlier, none that is later; those without a time up to the first later one."""
        times = [NOW_MS + 1000 * number + (SKEW_MS // 2 if number % 3 == 0 else 0) for number in range(300)]
        filled(self.log, times)
        wanted = NOW_MS + 100_000
        found = self.shown("--from", "0", "--until", str(wanted))
        self.assertEqual(found, [at for at, time_ms in enumerate(times) if time_ms < wanted])
        filled(self.log, [None, NOW_MS, None, NOW_MS + 10, None, NOW_MS + 1, None])
        self.assertEqual(self.shown("--from", "0", "--until", str(NOW_MS + 5)), [0, 1, 2, 5])

    def test_ago(self) -> None:
        """How long ago, by this machine's clock."""
        self.patch(since, "now_ms", lambda: NOW_MS + 600_000)
        filled(self.log, [NOW_MS + 1000 * number for number in range(600)])
        for text, first in (("90s", 510), ("5m", 300), ("1h", 0), ("99999d", 0)):
            self.assertEqual(self.shown("--since", text), list(range(first, 600)), text)
        self.assertEqual(self.shown("--since", "90s", "--until", "85s"), list(range(510, 515)))
        self.assertExit(self.run_cli("tail", "--since", "10w"), 64, "90s, 10m, 2h or 7d")

    def test_get_at(self) -> None:
        """The first entry of a time or later."""
        filled(self.log, [NOW_MS + 1000 * number for number in range(300)])
        self.assertIn("\t60\n", self.run_cli("get", "--at", "1767323105678").stdout)
        self.assertIn("\t61\n", self.run_cli("get", "--at", "1767323105679").stdout)
        self.assertExit(self.run_cli("get", "--at", "2027-01-01"), 1, "no entry is of 2027-01-01 00:00")
        for words in ((), ("3", "--at", "2026-01-01")):
            self.assertExit(self.run_cli("get", *words), 64, "give either INDEX or --at TIME")

    def test_follow(self) -> None:
        """With C{-f} of a time to come: from the end of the log."""
        filled(self.log, [NOW_MS] * 10)
        self.assertExit(self.run_cli("tail", "-f", "--since", "2099-01-01"), 130)
        self.assertEqual(self.log.calls[-1], ("tail", 10, True))

    def test_clocks_differ(self) -> None:
        """Entries of a clock that is behind, and of one that is before: those from the time on, no others."""
        times = [NOW_MS + 1000 * number + (SKEW_MS // 2 if number % 3 == 0 else 0) for number in range(300)]
        filled(self.log, times)
        wanted = NOW_MS + 150_000
        self.assertEqual(
            self.shown("--since", str(wanted)), [at for at, time_ms in enumerate(times) if time_ms >= wanted]
        )

    def test_without_times(self) -> None:
        """Entries after the last one that is known to be earlier are shown: they may be of the time."""
        filled(self.log, [None, NOW_MS, None, NOW_MS + 100_000, None, NOW_MS + 200_000, None])
        for since_ms, first in ((0, 0), (1000, 0), (100_000, 2), (200_000, 4), (300_000, 6)):
            self.assertEqual(self.shown("--since", str(NOW_MS + since_ms)), [
                at for at in range(first, 7) if at != 1 or not since_ms], since_ms)

    def test_begin_without_times(self) -> None:
        """The first time is later than the one asked for: the log is shown from its begin on."""
        filled(self.log, [None, None, NOW_MS, NOW_MS + 1])
        self.assertEqual(self.shown("--since", "2020-01-01"), [0, 1, 2, 3])
        self.assertIn("\t0\n", self.run_cli("get", "--at", "2020-01-01").stdout)

    def test_no_times(self) -> None:
        """Said so, with the remedy."""
        filled(self.log, [None] * 5)
        for options in ((), ("-f",)):
            result = self.run_cli("tail", "--since", "2026-01-02", *options)
            self.assertExit(result, 1, "has a time", "envelope=True", "Give an index instead of a time")
            self.assertEqual(result.stdout, "")

    def test_empty(self) -> None:
        """An empty log shows nothing, without an error."""
        filled(self.log, [])
        self.assertEqual(self.shown("--since", "2026-01-02"), [])

    def test_java_leader(self) -> None:
        """It does not say where its log ends."""
        self.log.infos = (attrs.evolve(self.log.infos[0], committed_index=-2),)
        self.assertExit(
            self.run_cli("tail", "--since", "2026-01-02"), 1, "Java leader", "give an index instead of a time"
        )

    def test_usage(self) -> None:
        """What is not a time, and options that do not go together."""
        for text in ("yesterday", "", "-5", "12", "nan", "1e99", "2026-13-01", "9" * 16, "1950-01-01"):
            result = self.run_cli("tail", f"--since={text}")
            self.assertExit(result, 64, "--since")
        self.assertExit(self.run_cli("tail", "--since", "2026-01-02", "--from", "3"), 64, "not both")
        self.assertExit(self.run_cli("tail", "--since", "2026-01-02", "--broker", "h:1"), 64, "a broker's")
        self.assertExit(self.run_cli("tail", "--headers", "--format", "raw"), 64, "--headers")
        self.assertEqual(self.log.calls, [])


class SearchTests(CliCase):
    """L{find_time}."""

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.none() | st.integers(0, 30), max_size=40).map(
        lambda times: sorted_times(times)), st.integers(0, 31), st.integers(0, 5))
    def test_every_small_log(self, times: list[int | None], wanted: int, begin: int) -> None:
        """With times that rise it finds the entry after the earlier ones; some have no time."""
        log = filled(FakeLog(), times)
        begin = min(begin, len(times))
        log.infos = (attrs.evolve(log.infos[0], begin_index=begin),)
        if begin < len(times) and not any(one is not None for one in times[begin:]):
            return
        earlier = [at for at, time_ms in enumerate(times) if time_ms is not None and time_ms < wanted]
        found = log.find_time(moment_of(wanted + SKEW_MS))
        self.assertEqual(found, max([begin, *(at + 1 for at in earlier)]))

    def test_cost(self) -> None:
        """Few entries are read of a long log, also when most of it is older than times are."""
        self.patch(places, "LOOK_ENTRIES", 100)
        times = [None] * 75_000 + list(range(25_000, 50_000))
        log = filled(FakeLog(), times)
        self.assertEqual(log.find_time(moment_of(40_000 + SKEW_MS)), 90_000)
        self.assertLess(len(log.calls), 20)


def sorted_times(times: list[int | None]) -> list[int | None]:
    """The same places without a time; the others in order."""
    rising = iter(sorted(one for one in times if one is not None))
    return [None if one is None else next(rising) for one in times]


class HeaderTests(CliCase):
    """C{dledger append --header}, C{dledger tail --headers}, and JSON."""

    def test_append(self) -> None:
        """They go to every entry; the time on request."""
        self.run_cli("append", "--header", "type=order", "--header", "x=a=b", "--envelope", "a", "b")
        self.assertEqual(self.log.calls, [("append_many", 1000, {"type": b"order", "x": b"a=b"})])
        self.assertIs(self.opened[-1][1]["envelope"], True)

    def test_key(self) -> None:
        """C{--key} is a header, too."""
        self.run_cli("append", "--key", "user-7", "-H", "a=b", "c")
        self.assertEqual(self.log.calls[-1], ("append_many", 1000, {"key": b"user-7", "a": b"b"}))

    def test_wrong(self) -> None:
        """Refused as usage, and nothing is opened."""
        self.assertExit(self.run_cli("append", "--key", "x", "-H", "key=y", "c"), 64, "not both")
        for header, said in (("x", "NAME=VALUE"), ("=x", "has 0 bytes"), ("a" * 70 + "=", "has 70 bytes")):
            self.assertExit(self.run_cli("append", "--header", header, "a"), 64, said)
        self.assertExit(self.run_cli("append", "--header", "a=", "--header", "a=", "b"), 64, "twice")
        self.assertEqual(self.opened, [])

    def test_shown(self) -> None:
        """As text on request, as JSON always."""
        headers = {"type": b"a b\n", "raw": b"\xff"}
        self.log.bodies = [b"plain", envelope_head(NOW_MS, headers) + b"hello"]
        self.assertEqual(self.run_cli("tail").stdout, "0\t1\tplain\n1\t1\thello\n")
        self.assertEqual(
            self.run_cli("tail", "--headers").stdout,
            "0\t1\t-\t-\tplain\n1\t1\t2026-01-02T03:04:05.678Z\ttype=a\\x20b\\n raw=\\xff\thello\n",
        )
        plain, full = [json.loads(line) for line in self.run_cli("tail", "--json").stdout.splitlines()]
        self.assertEqual(set(plain), {"index", "term", "pos", "body"})
        self.assertEqual(full, {
            "index": 1, "term": 1, "pos": 100, "timestamp": NOW_MS, "headers": {"type": "a b\n"},
            "headers_base64": {"raw": "/w=="}, "body": "hello",
        })
        self.assertIn("type=", self.run_cli("get", "1", "--headers").stdout)
