# -*- test-case-name: tests.sim.test_process -*-
"""A simulated process: its timers, its thread, its end, and the bugs that are heard."""

from __future__ import annotations

import random
from functools import partial

from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.world.bugs import BugWatch
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import PowerLoss, SimDisk
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.process import ProcessReactor, ProcessThread, SimProcess


class Machine:
    """Counts the events of its process."""

    def __init__(self) -> None:
        self.is_dying = False
        self.events = 0

    def event_ended(self) -> None:
        """Count."""
        self.events += 1


class ProcessTestCase(SynchronousTestCase):
    """A process with its reactor."""

    def setUp(self) -> None:
        self.clock = SimClock()
        self.machine = Machine()
        self.process = SimProcess(self.clock, random.Random(1), self.machine)
        self.reactor = ProcessReactor(self.process, boot_s=50.0)
        self.happened: list[object] = []

    def run_for(self, seconds: float) -> None:
        """Time passes."""
        self.clock.run_until(self.clock.now_us + int(seconds * 1e6))


class TimerTests(ProcessTestCase):
    """Timers of a reactor."""

    def test_order(self) -> None:
        """By time; the reactor's clock shows it."""
        self.reactor.callLater(2, lambda: self.happened.append(self.reactor.seconds()))
        self.reactor.callLater(1, lambda: self.happened.append(self.reactor.seconds()))
        self.run_for(3)
        self.assertEqual(self.happened, [51.0, 52.0])
        self.assertEqual(self.machine.events, 2)

    def test_cancel(self) -> None:
        """A cancelled call does not run, and is no event."""
        call = self.reactor.callLater(1, self.happened.append, 1)
        self.assertTrue(call.active())
        call.cancel()
        self.run_for(2)
        self.assertEqual((self.happened, call.active(), self.machine.events), ([], False, 0))

    def test_reset_and_delay(self) -> None:
        """Sooner and later; it runs once."""
        sooner = self.reactor.callLater(5, lambda: self.happened.append("sooner"))
        sooner.reset(1)
        later = self.reactor.callLater(1, lambda: self.happened.append("later"))
        later.delay(2)
        self.assertAlmostEqual(later.getTime(), 53.0)
        self.run_for(2)
        self.assertEqual(self.happened, ["sooner"])
        self.run_for(5)
        self.assertEqual(self.happened, ["sooner", "later"])

    def test_turn(self) -> None:
        """A call of no delay takes a turn."""
        reactor = ProcessReactor(self.process, turn_us=2000)
        reactor.callLater(0, self.happened.append, 1)
        self.run_for(0.001)
        self.assertEqual(self.happened, [])
        self.run_for(0.002)
        self.assertEqual(self.happened, [1])

    def test_rate(self) -> None:
        """A fast clock's seconds are short."""
        reactor = ProcessReactor(self.process, boot_s=0.0, rate=2.0)
        reactor.callLater(2, lambda: self.happened.append(reactor.seconds()))
        self.run_for(1)
        self.assertEqual(self.happened, [2.0])

    def test_frozen(self) -> None:
        """Timers of a frozen process run when it goes on; a LoopingCall counts the missed calls."""
        looping = LoopingCall.withCount(self.happened.append)
        looping.clock = self.reactor  # type: ignore[assignment]
        looping.start(1, now=False)
        self.run_for(1.5)
        self.process.freeze()
        self.run_for(3)
        self.process.thaw()
        self.assertEqual(self.happened, [1, 3])

    def test_suspended(self) -> None:
        """For a time that was lost the clock stood still, and timers run later."""
        self.reactor.callLater(2, lambda: self.happened.append(self.reactor.seconds()))
        self.run_for(1)
        self.reactor.lost_us += 5_000_000
        self.run_for(5.5)
        self.assertEqual((self.happened, self.reactor.seconds()), ([], 51.5))
        self.run_for(1)
        self.assertEqual(self.happened, [52.0])

    def test_ended(self) -> None:
        """Nothing of an ended process runs, frozen or not."""
        self.reactor.callLater(1, self.happened.append, 1)
        self.process.freeze()
        self.process.run("x", self.happened.append, 2)
        self.process.end()
        self.process.thaw()
        self.run_for(2)
        self.assertEqual(self.happened, [])

    def test_sources_stay_in_order(self) -> None:
        """When a process goes on, the events of one source keep their order; sources are mixed."""
        self.process.freeze()
        for number in range(20):
            self.process.run("a", self.happened.append, ("a", number))
            self.process.run("b", self.happened.append, ("b", number))
        self.process.thaw()
        for source in "ab":
            found = [one for one in self.happened if isinstance(one, tuple) and one[0] == source]
            self.assertEqual(found, [(source, number) for number in range(20)])
        self.assertNotEqual(self.happened[:20:2], [("a", number) for number in range(10)])


class ThreadTests(ProcessTestCase):
    """The thread for the disk."""

    def setUp(self) -> None:
        super().setUp()
        self.thread = ProcessThread(self.process, SimDisk(random.Random(1)), random.Random(2), took_us=1000)

    def test_order(self) -> None:
        """One call after the other; each takes time."""
        for number in range(5):
            self.thread.run(partial(self.happened.append, number))
        self.assertEqual(self.happened, [])
        self.run_for(1)
        self.assertEqual(self.happened, [0, 1, 2, 3, 4])

    def test_failure(self) -> None:
        """An error of the call is the Deferred's."""
        def fails() -> None:
            raise OSError("no")

        done = self.thread.run(fails)
        self.run_for(1)
        self.failureResultOf(done, OSError)


class MachineDiskTests(SynchronousTestCase):
    """A disk that remembers the death of its process."""

    def test_death(self) -> None:
        """The call fails, later changes fail; a new process writes again."""
        disk = MachineDisk(random.Random(1))
        disk.makedirs("/d")
        disk.arm(die_in=2)
        disk.open("/d/a", create=True)
        self.assertIsNone(disk.death)
        self.assertRaises(OSError, disk.open, "/d/b", create=True)
        self.assertIsInstance(disk.death, PowerLoss)
        self.assertRaises(OSError, disk.open, "/d/c", create=True)
        disk.end_process()
        self.assertIsNone(disk.death)
        disk.open("/d/c", create=True)


class BugWatchTests(SynchronousTestCase):
    """What is logged as a failure is a bug."""

    def test_heard(self) -> None:
        """The first one is informed, once."""
        watch = BugWatch()
        with watch.listening():
            Logger().failure("broken", Failure(ValueError("one")))
            Logger().failure("broken", Failure(ValueError("two")))
        Logger().failure("broken", Failure(ValueError("nobody listens")))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 3)
        with self.assertRaises(ValueError) as caught:
            watch.notify()
        self.assertEqual(str(caught.exception), "one")
        watch.notify()

    def test_forgotten(self) -> None:
        """A process that died fails in many ways: they do not count."""
        watch = BugWatch()
        watch.note(ValueError())
        watch.forget()
        watch.notify()

    def test_collected_deferreds(self) -> None:
        """Nor do errors of Deferreds that Python collects: when it does so is not a function of the seed."""
        watch = BugWatch()
        with watch.listening():
            Logger(namespace="twisted.internet.defer").failure("Unhandled", Failure(ValueError()))
        self.flushLoggedErrors(ValueError)
        watch.notify()
