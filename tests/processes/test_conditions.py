# -*- test-case-name: tests.processes.test_conditions -*-
"""Writers that expect an end of the log, with real members whose leader is killed."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from tests.processes.children import wait_until
from tests.processes.members import Group

#: Seconds that everything may take on a busy machine.
LONG_S = 120.0
WRITERS = 3


class Counter(threading.Thread):
    """Adds one to the number in the last entry, again and again; somebody else may be first."""

    def __init__(self, peers: str, is_stopped: threading.Event) -> None:
        super().__init__()
        self.log = dledger.connect(peers, timeout=90.0)
        self.acknowledged: list[tuple[int, int]] = []
        self.conflicts = self.unknown = 0
        self.error: BaseException | None = None
        self._is_stopped = is_stopped

    def run(self) -> None:
        """Until it is asked to stop."""
        try:
            with self.log:
                while not self._is_stopped.is_set():
                    self._count()
        except BaseException as error:
            self.error = error

    def _count(self) -> None:
        end, number = -1, 0
        for entry in self.log.tail(-20, control=True):
            end = entry.index
            number = int(entry.body) if entry.body else number  # a leader begins with an empty entry
        try:
            placed = self.log.append(b"%d" % (number + 1), expected_end=end)
        except dledger.Conflict:
            self.conflicts += 1
        except dledger.UnknownOutcome:
            self.unknown += 1
        except (dledger.NotLeader, dledger.Timeout):
            pass
        else:
            self.acknowledged.append((placed.index, number + 1))


class ConditionTests(SynchronousTestCase):
    """A counter in the log."""

    def test_counter(self) -> None:
        """No number is lost, and none is there twice: the log is a state that is compared and set."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        group = Group(Path(held.name))
        self.addCleanup(group.kill)
        group.start()
        group.leader()
        is_stopped = threading.Event()
        counters = [Counter(group.peers_text, is_stopped) for _ in range(WRITERS)]
        self.addCleanup(is_stopped.set)
        for counter in counters:
            counter.start()

        def count() -> int:
            return sum(len(counter.acknowledged) for counter in counters)

        for _ in range(3):
            before = count()
            wait_until(lambda at=before: count() > at + 100, seconds=LONG_S, what="a hundred more")
            leader_id = group.leader()
            group.members[leader_id].kill()
            before = count()
            wait_until(lambda at=before: count() > at + 20, seconds=LONG_S, what="another leader")
            group.members[leader_id].start()
        is_stopped.set()
        for counter in counters:
            counter.join(LONG_S)
            self.assertIsNone(counter.error)
        group.leader()
        with dledger.connect(group.peers_text) as log:
            numbers = {entry.index: int(entry.body) for entry in log.tail(0) if entry.body}
        self.assertEqual(list(numbers.values()), list(range(1, len(numbers) + 1)))
        for counter in counters:
            self.assertGreater(counter.conflicts, 0)
            self.assertEqual({index: numbers[index] for index, _ in counter.acknowledged},
                             dict(counter.acknowledged))
        unknown = sum(counter.unknown for counter in counters)
        self.assertLessEqual(len(numbers) - count(), unknown)
