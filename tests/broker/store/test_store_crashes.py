# -*- test-case-name: tests.broker.store.test_store_crashes -*-
"""A whole store after random crashes: kills and losses of power, one after the other."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.world.disk import MemberDied, PowerLoss, ProcessKilled, SimDisk
from dledger.values.errors import StoreError
from tests.broker.store.test_reput import expected
from tests.broker.support import (
    Opened,
    log_bytes,
    plain,
    some_message,
)


def death_of(disk: SimDisk, kind: type[MemberDied]) -> type[MemberDied]:
    """An end after which no handle of the process is of use, whatever swallows the exception."""

    class Death(kind):  # type: ignore[misc, valid-type]
        def __init__(self, where: str) -> None:
            super().__init__(where)
            disk.life += 1

    return Death


class CrashTests(SynchronousTestCase):
    """Ends of any kind at any moment."""

    def test_any_crash_keeps_flushed_messages(self) -> None:
        """
        After any crash the log is at least as long as what was flushed, what is in it is what was appended,
        and the queues fit the log.
        """
        deaths = 0
        for seed in range(80):
            rng = random.Random(seed)
            disk = SimDisk(rng)
            stream, promised = b"", 0
            for life in range(5):
                kind = rng.choice([PowerLoss, ProcessKilled])
                if life < 4:
                    disk.arm(die_in=rng.randrange(1, 150), death=death_of(disk, kind))
                number = disk.life
                try:
                    stream, promised = self.live(disk, number, rng, stream, promised)
                except (MemberDied, StoreError):
                    self.assertNotEqual(disk.life, number, "nobody died")
                self.flushLoggedErrors()
                if disk.life == number:
                    disk.disarm()
                    continue
                deaths += 1
                stream, promised = self.last
                if kind is PowerLoss:
                    disk.lose_power()
                else:
                    disk.end_process()
        self.assertGreater(deaths, 100)

    def live(
        self, disk: SimDisk, life: int, rng: random.Random, stream: bytes, promised: int
    ) -> tuple[bytes, int]:
        """
        One life: check what is there, append, flush, close.

        @param stream: what was appended so far, as far as is known; C{promised} bytes of it were flushed.
        """
        self.last = stream, promised
        opened = Opened(disk, is_slave=rng.random() < 0.3)
        opened.settle()
        log = opened.store.log
        if disk.life != life:
            return self.last
        found = log_bytes(log)
        self.assertGreaterEqual(len(found), promised)
        known = min(len(found), len(stream))
        self.assertEqual(found[:known], stream[:known])
        units = {key: one for key, one in opened.units().items() if one}
        self.assertEqual(units, expected(log))
        self.assertEqual(opened.store.queues.misplaced, 0)
        self.last = found, log.flushed_record_end
        for _ in range(rng.randrange(30)):
            opened.store.append_plain(plain([some_message(rng)]), 1_000_000)
            if disk.life != life:
                return self.last
            self.last = log_bytes(log), log.flushed_record_end
            if rng.random() < 0.3:
                opened.clock.advance(rng.choice([0.5, 10.0]))
                opened.settle()
            if disk.life != life:
                return self.last
            self.last = self.last[0], log.flushed_record_end
        if rng.random() < 0.5:
            opened.close()
        else:
            opened.store.abandon()
        return self.last
