# -*- test-case-name: tests.storage.test_place_worker -*-
"""Calls with a deadline."""

from __future__ import annotations

import errno
import threading

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.backups.place_worker import CallWorker, DeadlineMissed


class _Ctrl(BaseException):
    """Not an Exception."""


class WorkerTests(SynchronousTestCase):
    """The outcome of a call, or an error in time."""

    def fail_with(self, error: BaseException) -> None:
        """As a call."""
        raise error

    def test_outcomes(self) -> None:
        """A result, an error of the system as it is, and any other one as EIO with its text."""
        worker = CallWorker(20.0)
        self.assertEqual(worker.run("x", lambda: 7), 7)
        absent = FileNotFoundError(errno.ENOENT, "absent", "x")
        self.assertIs(self.assertRaises(FileNotFoundError, worker.run, "x", lambda: self.fail_with(absent)),
                      absent)
        error = self.assertRaises(OSError, worker.run, "s3://b/x", lambda: self.fail_with(KeyError("token")))
        self.assertEqual(error.errno, errno.EIO)
        self.assertIn("KeyError: 'token'", str(error))
        self.assertIn("s3://b/x", str(error))
        self.assertRaises(_Ctrl, worker.run, "x", lambda: self.fail_with(_Ctrl()))
        self.assertEqual(worker.run("x", lambda: 8), 8)

    def test_late(self) -> None:
        """A call that does not return is given up; none is begun after it, as it may still do its work."""
        worker = CallWorker(0.01)
        gate = threading.Event()
        self.addCleanup(gate.set)
        error = self.assertRaises(DeadlineMissed, worker.run, "s3://b/x", gate.wait)
        self.assertIn("not answered within 0.01 s", str(error))
        began: list[int] = []
        error = self.assertRaises(DeadlineMissed, worker.run, "s3://b/x", lambda: began.append(1))
        self.assertIn("an earlier call has missed its deadline", str(error))
        gate.set()
        self.assertEqual(began, [])

    def test_closed(self) -> None:
        """Its thread ends, and no call is begun after that."""
        worker = CallWorker(20.0)
        threads: list[threading.Thread] = []
        worker.run("x", lambda: threads.append(threading.current_thread()))
        worker.close()
        threads[0].join(20.0)
        self.assertFalse(threads[0].is_alive())
        self.assertRaises(DeadlineMissed, worker.run, "x", lambda: 7)
