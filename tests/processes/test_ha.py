# -*- test-case-name: tests.processes.test_ha -*-
"""A master and a slave as real processes on real files: killed at random moments, soon equal again."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.children import TalkingChild, free_ports, wait_until
from tests.processes.ha_broker import FILE_SIZE
from tests.processes.members import ROOT


def log_of(store: Path, end: int) -> bytes:
    """The bytes of the log below C{end}."""
    files = sorted((store / "commitlog").iterdir())
    data = b"".join(path.read_bytes() for path in files)
    assert files[0].name == "0" * 20 and len(data) == FILE_SIZE * len(files)
    return data[:end]


class KillTests(SynchronousTestCase):
    """SIGKILL of either side under load."""

    def broker(self, name: str, *options: str) -> TalkingChild:
        """One of the two brokers."""
        child = TalkingChild(
            name,
            [sys.executable, "-m", "tests.processes.ha_broker", "--port", str(self.port), "--store",
             str(self.directory / name), *options],
            log_path=self.directory / f"{name}.log", environment={"PYTHONPATH": str(ROOT)},
        )
        self.addCleanup(child.kill)
        return child

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        (self.port,) = free_ports(1)

    def ends(self, child: TalkingChild) -> int:
        """The end of its log."""
        return int(json.loads(child.ask("status", seconds=60))["end_offset"])

    def run_rounds(self, flush: str, rounds: int) -> None:
        """Run rounds of kills with one flush type."""
        rng = random.Random(7)
        puts = self.directory / "puts"
        master = self.broker("master", "--role", "SYNC_MASTER", "--flush", flush, "--puts", str(puts))
        slave = self.broker("slave", "--role", "SLAVE", "--flush", flush)
        for child in (master, slave):
            child.start()
            child.wait_started(seconds=60)
        master.ask("load", seconds=60)
        for _ in range(rounds):
            time.sleep(rng.uniform(0.05, 0.8))
            victim = rng.choice((master, slave))
            victim.kill()
            victim.start()
            victim.wait_started(seconds=60)
            if victim is master:
                master.ask("load", seconds=60)

        def is_connected() -> bool:
            return bool(json.loads(slave.ask("status", seconds=60))["follower"]["is_connected"])

        wait_until(is_connected, seconds=60, what="the slave has its master again", every=0.1)
        master.ask("quiet", seconds=60)
        end = self.ends(master)
        wait_until(lambda: self.ends(slave) == end, seconds=60, what="the slave has caught up", every=0.1)
        for child in (slave, master):
            self.assertEqual(child.stop(seconds=60), 0, child.log_tail())
        log = log_of(self.directory / "master", end)
        self.assertEqual(log_of(self.directory / "slave", end), log)
        answered = [line.split() for line in puts.read_text().splitlines()]
        acknowledged = [put for put in answered if put[3] == "PUT_OK"]
        self.assertGreater(len(acknowledged), 50, answered[-3:])
        for start, stop, crc, _ in acknowledged:
            self.assertEqual(crc32(log[int(start) : int(stop)]), int(crc), (start, stop))
        self.assertGreater(end, FILE_SIZE)

    def test_page_cache(self) -> None:
        """ASYNC_FLUSH on both sides: equal logs, and no acknowledged message is lost."""
        self.run_rounds("ASYNC_FLUSH", rounds=6)

    def test_stable_storage(self) -> None:
        """SYNC_FLUSH on both sides: the same."""
        self.run_rounds("SYNC_FLUSH", rounds=4)
