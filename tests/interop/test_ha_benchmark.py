# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""The calculations of the replication benchmark."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from unittest import mock

import attrs
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from benchmarks.ha import (
    BARE,
    ROLES,
    Cell,
    Copies,
    Measured,
    _plan,
    cells_of,
    copy_rows,
    java_ratio,
    main,
    put_rows,
    run_cell,
    speed_of,
    sync_ratio,
)
from benchmarks.ha_brokers import ASYNC_MASTER, KINDS, SYNC_MASTER, parse_sample
from benchmarks.ha_catch_up import Copied, bare_copy, poll_s, write_store
from benchmarks.load import LoadError, Sample
from dledger.base.disk.disk import OsDisk
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.log.log_start import inspect_log
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.store_config import StoreConfig

CELL = Cell(system="dledger", role=SYNC_MASTER, body_bytes=100, window=64)


def measured(*rates: float | None) -> Measured:
    """Rounds with these rates in messages per second; None for a failed one."""
    return Measured(samples=[
        None if rate is None else Sample(throughput_per_s=rate, p50_ms=1.0, p99_ms=2.0, acknowledged=10)
        for rate in rates
    ])


class RatioTests(SynchronousTestCase):
    """Systems are compared round by round."""

    def test_sync(self) -> None:
        """A slow round slows both down, so the ratio is of one round; a failed round does not count."""
        results = {
            CELL: measured(90, 9, 80, 1),
            attrs.evolve(CELL, role=ASYNC_MASTER): measured(100, 10, 80, None),
        }
        self.assertAlmostEqual(sync_ratio(results, CELL), 0.9)
        self.assertTrue(math.isnan(sync_ratio(results, attrs.evolve(CELL, role=ASYNC_MASTER))))

    def test_java(self) -> None:
        """The ratio is to Java's cell of the same role, size and window."""
        results = {
            CELL: measured(30, 40), attrs.evolve(CELL, system="java"): measured(20, 20),
            attrs.evolve(CELL, system="java", window=1): measured(1, 1),
        }
        self.assertAlmostEqual(java_ratio(results, CELL), 1.75)
        self.assertTrue(math.isnan(java_ratio(results, attrs.evolve(CELL, system="java"))))

    def test_nothing_to_compare_with(self) -> None:
        """A ratio with a cell that was not measured, or always failed, is NaN."""
        self.assertTrue(math.isnan(sync_ratio({CELL: measured(1)}, CELL)))
        results = {CELL: measured(None), attrs.evolve(CELL, role=ASYNC_MASTER): measured(100)}
        self.assertTrue(math.isnan(sync_ratio(results, CELL)))

    def test_rows(self) -> None:
        """The file is valid JSON: null instead of NaN."""
        results = {CELL: measured(100, None), attrs.evolve(CELL, system="java"): measured(None)}
        ours, java = json.loads(json.dumps(put_rows(results), allow_nan=False))
        self.assertEqual((ours["system"], ours["body_bytes"], ours["window"], ours["flush"], ours["role"]),
                         ("dledger", 100, 64, "async", "SYNC_MASTER"))
        self.assertEqual((ours["throughput_per_s"], ours["rounds_per_s"]), (100.0, [100.0, None]))
        self.assertEqual((java["throughput_per_s"], java["p99_ms"], ours["by_java"]), (None, None, None))

    def test_copies(self) -> None:
        """Medians over the rounds; processor time per GiB."""
        copies: Copies = {
            ("java", "ours"): [
                Copied(bytes=1 << 29, seconds=seconds, cpu_s=1.0) for seconds in (1.0, 2.0, 8.0)
            ],
            (BARE, ""): [Copied(bytes=1 << 29, seconds=0.5, cpu_s=0.5)],
        }
        self.assertEqual(speed_of(copies, ("java", "ours")), 256.0)
        row, bare = copy_rows(copies)
        self.assertEqual((row["system"], row["cpu_s_per_gib"]), ("java master, ours slave", 2.0))
        self.assertEqual((bare["system"], bare["mib_per_s"]), (BARE, 1024.0))
        self.assertTrue(math.isnan(speed_of(copies, ("java", "java"))))


class OrderTests(SynchronousTestCase):
    """The order of the measurements."""

    def test_together(self) -> None:
        """Both roles of a system follow one another, in changing order; all systems of a window come before
        the next window."""
        plan = _plan(False, "1,64", "100", 2, 1.0, KINDS)
        for turn, roles in ((0, ROLES), (1, ROLES[::-1])):
            cells = [cell for cell, _, _ in cells_of(KINDS, plan, turn)]
            self.assertEqual([cell.window for cell in cells], [1] * 6 + [64] * 6)
            self.assertEqual([cell.role for cell in cells], list(roles) * 6)
            self.assertEqual([cell.system for cell in cells[::2]], ["java", "dledger", "dledger-binary"] * 2)

    def test_second_attempt(self) -> None:
        """A run with refusals is repeated once, after the slave has come back."""
        good = Sample(throughput_per_s=1.0, p50_ms=1.0, p99_ms=1.0, acknowledged=1)
        bad = attrs.evolve(good, refused=3, reason="SLAVE_NOT_AVAILABLE")
        plan = _plan(True, "1", "100", 1, 1.0, KINDS)
        for runs, kept in (([bad, good], [good]), ([bad, bad, good], [None]), ([good, bad], [good])):
            measured, pair = Measured(), mock.Mock()
            pair.cpu_seconds.return_value = pair.master.rss_bytes.return_value = 1
            load = mock.Mock()
            load.run.side_effect = runs
            run_cell(pair, CELL, load, load, plan, measured)
            self.assertEqual(measured.samples, kept)
            self.assertEqual(len(measured.failures), pair.settle.call_count)


class AnswerTests(SynchronousTestCase):
    """The answers of Java's producer."""

    def test_sample(self) -> None:
        """Counts, times, and a reason of several words or none."""
        sample = parse_sample("1000 0.512 3.250 0 ", seconds=2.0, client_cpu_share=0.5)
        self.assertEqual((sample.throughput_per_s, sample.p50_ms, sample.p99_ms), (500.0, 0.512, 3.25))
        self.assertEqual((sample.refused, sample.reason, sample.client_cpu_share), (0, "", 0.5))
        sample = parse_sample("0 NaN NaN 7 CODE: 1 no such queue", seconds=2.0)
        self.assertEqual((sample.refused, sample.reason), (7, "CODE: 1 no such queue"))

    def test_something_else(self) -> None:
        """For example the text of an exception."""
        for line in ("", "Exception in thread", "1 2 3", "1 2 x 4 5"):
            self.assertRaises(LoadError, parse_sample, line, seconds=1.0)


class CopyTests(SynchronousTestCase):
    """The copied log, and the bare copy."""

    def test_store(self) -> None:
        """The log opens as cleanly closed, and ends as returned."""
        directory = Path(self.mktemp())
        reported: list[int] = []
        end = write_store(directory, log_bytes=1 << 18, body_bytes=1000, reported=reported.append)
        self.assertGreaterEqual(end, 1 << 18)
        self.assertEqual(reported[-1], end)
        config, disk = StoreConfig(store_path_root_dir=str(directory)), OsDisk()
        seen = inspect_log(config, disk, checkpoint=None, is_aborted=False)
        log = CommitLog.open(
            config, disk, seen, is_slave=False, run_in_thread=lambda _: None, events=BrokerEvents()
        )
        self.addCleanup(log.abandon)
        self.assertEqual((log.begin_offset, log.end_offset, log.record_end), (0, end, end))

    def test_few_questions(self) -> None:
        """A slave is asked seldom in the beginning, often at the end."""
        for done, seconds, expected in ((0, 0.0, 0.05), (10, 1.0, 0.1), (90, 1.0, 1 / 18), (99, 1.0, 0.01)):
            self.assertAlmostEqual(poll_s(done, 100, seconds), expected)

    def test_bare_copy(self) -> None:
        """It copies the bytes asked for, and removes the target afterwards."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        source, target = directory / "source", directory / "target"
        source.write_bytes(bytes(range(256)) * 4096)
        copied = bare_copy(source, target, 1 << 19)
        self.assertEqual((copied.bytes, target.exists()), (1 << 19, False))
        self.assertGreater(copied.mib_per_s, 0)
        command = [sys.executable, "-m", "benchmarks.bare_copy", str(source), str(target), str(1 << 30)]
        subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2])
        self.assertEqual(target.read_bytes(), source.read_bytes())


class CommandTests(SynchronousTestCase):
    """The command line."""

    def test_unknown_words(self) -> None:
        """They are refused; the message names the known ones."""
        for words, said in ((["--kinds", "java,perl"], "java,ours"), (["--parts", "gets"], "puts,catch-up")):
            result = CliRunner().invoke(main, words)
            self.assertEqual(result.exit_code, 2)
            self.assertIn(said, result.output)
