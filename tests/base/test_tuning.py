# -*- test-case-name: tests.base.test_tuning -*-
"""In a process of its own, as it stays for the life of one."""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

_SCRIPT = """
import gc, platform, resource
from dledger.base import tuning

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        [b"x" * (1024 * 1024 + number) for number in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
reported = tuning.keep_freed_memory()
faults()
tuning.spare_the_collector()
print(platform.libc_ver()[0], reported, before, faults(), gc.get_freeze_count() > 0, gc.get_threshold()[0])
"""


class TuningTests(SynchronousTestCase):
    """Both settings have the effect that they are made for."""

    def test_process(self) -> None:
        """Pages of a freed buffer are used again, and old objects are left alone."""
        run = subprocess.run(
            [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=True
        )
        libc, reported, before, after, is_frozen, young = run.stdout.split()
        self.assertEqual((is_frozen, young), ("True", "10000"))
        self.assertEqual(reported, str(libc == "glibc"))
        if libc == "glibc":
            # 8 MiB are 2,048 pages, each of them zeroed anew in each of 50 rounds; then in none.
            self.assertGreater(int(before), 50 * 1024)
            self.assertLess(int(after), 2048)
