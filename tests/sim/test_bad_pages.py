# -*- test-case-name: tests.sim.test_bad_pages -*-
"""Pages of logs that disks cannot read: what brokers do, and the bugs that such schedules have found."""

from __future__ import annotations

import random

from dledger.testing.brokers.pair_schedule import PairFocus, run_pair_schedule
from dledger.testing.brokers.rig.accounts import ACKED, PLAIN, ProducedMessage, TrafficRecord
from dledger.testing.brokers.rig.bad_pages import BadPages
from dledger.testing.raft_brokers.schedule import run_raft_schedule
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.platter import PAGE_BYTES
from tests.broker.support import config_of, message, open_log
from tests.sim.test_pairs import PairCase

#: The faults of the seeds that found bugs.
FAULTS = (
    "kill", "kill", "kill_in_write", "stop", "freeze", "cut_brokers", "break", "darken", "slow_disk",
    "fill_disk", "disk_error", "lose_power", "promote", "renew_slave", "spoil_log", "spoil_log", "spoil_log",
    "read_error", "spoil_queue",
)


class ScheduleTests(PairCase):
    """Whole schedules."""

    def test_pairs_that_found_bugs(self) -> None:
        """Units of unread records: dropped as torn ones, so that messages were hidden and offsets fell."""
        found = [run_pair_schedule(seed, focus=PairFocus(faults=FAULTS)).failure for seed in (131,)]
        self.assertEqual(found, [""])

    def test_a_raft_group_that_found_bugs(self) -> None:
        """A start that took unreadable bytes for a blank."""
        faults = ("spoil_log", "spoil_log", "kill", "hand_over", "lose_power", "cut_off", "spoil_queue")
        self.assertEqual(run_raft_schedule(406, faults=faults).failure, "")  # its first entry cannot be read


class BadPageTests(PairCase):
    """The page, its messages, and the operator."""

    def setUp(self) -> None:
        self.disk = MachineDisk(random.Random(1))
        self.log = open_log(self.disk, config=config_of(mapped_file_size_commit_log=4 * PAGE_BYTES))
        self.log.append([[message(bytes(900), properties={"KEYS": f"k{number}"})] for number in range(30)], 1)
        self.log.flush()
        self.pages = BadPages()
        self.path = "base/commitlog"

    def spoil(self, before: int) -> set[str]:
        """The keys of the messages that cannot be read."""
        found = self.pages.spoil("m", self.disk, self.path, before=before, rng=random.Random(2))
        return {key for one in found for key in one.keys}

    def test_messages_of_a_page(self) -> None:
        """Those of which a part is there; an operator makes it as it was, unless it was written since."""
        whole = self.disk.files_below(self.path)
        self.assertEqual(self.spoil(PAGE_BYTES - 1), set())
        self.assertEqual(self.spoil(PAGE_BYTES), {f"k{number}" for number in range(5)})
        self.assertEqual(self.spoil(PAGE_BYTES), set())
        self.assertEqual((len(self.pages), self.pages.of("m"), self.pages.of("n")), (1, 1, 0))
        path = min(whole)
        self.assertTrue(self.disk.is_bad(path, 0) and self.disk.has_bad_pages(self.path))
        file = self.disk.open(path)
        file.pwrite(b"\xbd" * PAGE_BYTES, 0)
        self.pages.repair("m", self.disk)
        self.assertEqual((self.disk.files_below(self.path), len(self.pages)), (whole, 0))
        self.spoil(PAGE_BYTES)
        file.pwrite(b"other" * 1000, 0)
        self.pages.repair("m", self.disk)
        self.assertNotEqual(self.disk.files_below(self.path), whole)
        self.spoil(PAGE_BYTES)
        self.disk.forgive(self.path)
        self.pages.forget("m")
        self.assertFalse(len(self.pages) or self.disk.has_bad_pages(self.path))

    def test_unreadable_messages_may_be_lost(self) -> None:
        """Consumers get the messages around them."""
        record = TrafficRecord()
        for key in ("k0", "k29"):
            record.sent[key] = ProducedMessage(
                key=key, topic="T1", queue_id=0, tag="A", number=1, body=b"", due_ms=0, kind=PLAIN, era=0,
                outcome=ACKED,
            )
        found = self.pages.spoil("m", self.disk, self.path, before=PAGE_BYTES, rng=random.Random(2))
        record.unreadable(found)
        self.assertEqual([one.key for one in record.needed(frozenset({"T1"}))], ["k29"])
