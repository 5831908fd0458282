# -*- test-case-name: tests.client.test_reactor_thread -*-
"""The thread of a reactor of our own: it ends, and leaves nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from pathlib import Path

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater
from twisted.python import threadable
from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.reactor_thread import Outcome as PendingOutcome
from dledger.base.reactor_thread import ReactorThread
from dledger.client.blocking import Log
from dledger.rocketmq.client.blocking import Broker
from dledger.values.errors import DLedgerError
from tests.client.test_blocking import LiveGroup, interrupted_at


class ReactorThreadTests(SynchronousTestCase):
    """Reactors of our own."""

    def test_nothing_is_left(self) -> None:
        """Neither threads nor descriptors, however often."""
        LiveGroup().open().close()  # whatever is made once is made now
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with LiveGroup().open() as log:
                log.append(b"a")
        self.assertEqual(threading.active_count(), threads)
        self.assertEqual(len(os.listdir("/proc/self/fd")), files)

    def test_wrong_peers_leave_no_thread(self) -> None:
        """A log that cannot be made leaves no thread behind."""
        threads = threading.active_count()
        self.assertRaises(ValueError, dledger.connect, "nonsense")
        self.assertEqual(threading.active_count(), threads)

    def test_an_interrupt_leaves_nothing_locked(self) -> None:
        """Ctrl-C in a wait leaves nothing locked that the reactor's thread needs."""
        thread = ReactorThread("interrupted")
        self.addCleanup(thread.stop, lambda: None)

        def story() -> Deferred[None]:
            # Comes when it is waited for; the second one after the first.
            return deferLater(thread.reactor, 0.01)

        step = 0
        while interrupted_at(step, lambda: thread.wait(story)):
            thread.begin(story).result(timeout=30.0)
            step += 1
        self.assertGreater(step, 10)

    def test_asked_while_it_ends(self) -> None:
        """Who wakes the reactor up while it ends writes to a pipe that is still there."""
        thread = ReactorThread("ending")
        reactor, over = thread.reactor, threading.Event()
        reactor.callFromThread(reactor.addSystemEventTrigger, "after", "shutdown", over.set)
        plain = reactor.callFromThread

        def slow(call: Callable[..., object], *args: object) -> None:
            plain(call, *args)
            self.assertTrue(over.wait(30))
            thread.thread.join(0.1)  # it would have been closed by now
            reactor.wakeUp()

        self.patch(reactor, "callFromThread", slow)
        thread.stop(lambda: None)
        self.assertFalse(thread.thread.is_alive())
        self.assertFalse(thread._call(lambda: None))

    def test_asked_too_late(self) -> None:
        """
        A caller that the reactor did not hear any more is informed by its thread; later ones are at once.
        """
        thread = ReactorThread("ended")
        plain = thread.reactor.callFromThread
        self.patch(thread.reactor, "callFromThread", lambda call, *args: None)
        unheard = thread.begin(lambda: succeed(1))
        plain(thread.reactor.stop)
        self.assertRaises(DLedgerError, unheard.result, timeout=30.0)
        thread.thread.join(30)
        self.assertRaises(DLedgerError, thread.begin, lambda: succeed(1))
        self.assertEqual(len(thread._open), 1)  # who was informed stays in it
        thread.stop(lambda: None)

    def test_ends_with_its_last_reference(self) -> None:
        """Nobody has stopped it: it ends all the same, after what its owner wants, and a warning says so."""
        ended = threading.Event()
        thread = ReactorThread("forgotten")
        own = thread.thread
        thread.when_forgotten(ended.set)
        self.assertEqual(thread.wait(lambda: succeed(1)), 1)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", ResourceWarning)
            del thread
            gc.collect()
        own.join(30)
        self.assertEqual((own.is_alive(), ended.is_set()), (False, True))
        self.assertIn("forgotten was not closed", [str(one.message) for one in seen])

    def test_forgotten_logs_leave_no_threads(self) -> None:
        """A program that opens one log after the other and closes none has no thread for each."""
        for make in (lambda: Log("n0-127.0.0.1:1"), lambda: Broker("127.0.0.1:1")):
            before = set(threading.enumerate())
            log = make()
            (own,) = set(threading.enumerate()) - before
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                del log
                gc.collect()
            own.join(30)
            self.assertFalse(own.is_alive(), own.name)

    def test_an_outcome_comes_once(self) -> None:
        """Comes once, and may be asked for again, before and after."""
        outcome: PendingOutcome[int] = PendingOutcome()
        self.assertRaises(TimeoutError, outcome.result, 0.001)
        outcome.set_result(7)
        self.assertRaises(InvalidStateError, outcome.set_exception, ValueError())
        self.assertEqual([outcome.result(), outcome.result(timeout=1.0)], [7, 7])
        failed: PendingOutcome[int] = PendingOutcome()
        failed.set_exception(KeyError("x"))
        self.assertRaises(KeyError, failed.result)

    def test_several_at_once(self) -> None:
        """Each has its own reactor."""
        logs = [LiveGroup().open() for _ in range(3)]
        self.assertEqual([log.append(b"a").index for log in logs], [0, 0, 0])
        for log in logs:
            log.close()

    def test_io_thread_is_not_ours(self) -> None:
        """What another reactor thinks of as its thread stays that."""
        self.patch(threadable, "ioThread", -5)
        with LiveGroup().open() as log:
            log.append(b"a")
        self.assertEqual(threadable.ioThread, -5)

    def test_story_that_raises(self) -> None:
        """An exception before there is a Deferred comes back, too."""
        thread = ReactorThread("test")
        try:
            self.assertRaises(ZeroDivisionError, thread.wait, lambda: 1 / 0)
        finally:
            thread.stop(lambda: None)

    def test_no_global_reactor(self) -> None:
        """A program may choose its own reactor after it has used ours."""
        code = (
            "import sys, dledger\n"
            "log = dledger.connect('n0-127.0.0.1:1', timeout=0.05)\n"
            "try: log.append(b'x')\n"
            "except dledger.values.errors.DLedgerError: pass\n"
            "log.close()\n"
            "print('twisted.internet.reactor' in sys.modules)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
            cwd=Path(dledger.__file__).parent.parent, check=False,
        )
        self.assertEqual((done.stdout.strip(), done.returncode), ("False", 0), done.stderr)

    def test_importing_dledger_imports_no_twisted(self) -> None:
        """The package is not behind the reactor."""
        code = "import sys, dledger; print('twisted' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
            cwd=Path(dledger.__file__).parent.parent, check=False,
        )
        self.assertEqual(done.stdout.strip(), "False")
