# -*- test-case-name: tests.processes.test_locks -*-
"""A directory that another process has locked is not opened, with either kind of lock."""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.values.errors import DirectoryError
from tests.broker.support import Opened

#: Locks the first byte, as Java's C{FileChannel.tryLock(0, 1, false)} does, or with the other kind of lock.
_HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
(fcntl.lockf if sys.argv[2] == "java" else fcntl.flock)(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


class LockTests(SynchronousTestCase):
    """The lock of a store."""

    def hold(self, path: str, kind: str) -> subprocess.Popen[bytes]:
        """A process that holds the file until its standard input ends."""
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, path, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.addCleanup(holder.communicate)
        assert holder.stdout is not None
        self.assertEqual(holder.stdout.readline(), b"held\n")
        return holder

    def test_both_kinds(self) -> None:
        """Opening fails while the lock is held; then it succeeds, and excludes both kinds."""
        root = self.mktemp()
        os.mkdir(root)
        path = f"{root}/lock"
        for kind in ("java", "ours"):
            with open(path, "wb") as file:
                file.write(b"lock")
            holder = self.hold(path, kind)
            error = self.assertRaises(DirectoryError, Opened, OsDisk(), root=root)
            self.assertIn("in use by another process", str(error))
            self.assertEqual(os.listdir(root), ["lock"])
            holder.communicate(timeout=240)
        opened = Opened(OsDisk(), root=root)
        for kind in ("java", "ours"):
            done = subprocess.run(
                [sys.executable, "-c", _HOLDER, path, kind], input=b"", capture_output=True, timeout=60
            )
            self.assertIn(b"BlockingIOError", done.stderr)
        opened.store.abandon()
