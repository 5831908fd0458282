# -*- test-case-name: tests.interop.test_lanes -*-
"""
Programs that run side by side, one in each lane: they wait for elections and time-outs more than they work.

A program's output is written as a whole when it has ended, so that outputs do not mix; that it began, ended,
or still runs is told meanwhile.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import TextIO

import attrs

from tests.run_all import Count, Reader

TELL_S = 60.0
#: Seconds after which a program is ended: several times the time of the slowest.
LIMIT_S = 700.0


@attrs.frozen(kw_only=True)
class Job:
    """
    One program.

    @ivar read: from the whole output and the exit status to the count.
    """

    name: str
    command: tuple[str, ...]
    read: Reader


class Lanes:
    """
    Invariant: a job is in the queue, or runs in one lane, or is counted.

    @ivar counts: of the jobs, by name.
    """

    def __init__(
        self, jobs: Sequence[Job], out: TextIO, *, tell_s: float = TELL_S, limit_s: float = LIMIT_S
    ) -> None:
        self.counts: dict[str, Count] = {}
        self._out = out
        self._tell_s = tell_s
        self._limit_s = limit_s
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            self._jobs.put(job)
        self._began = time.monotonic()
        self._writing = threading.Lock()
        self._running: dict[str, subprocess.Popen[str]] = {}

    def run(self, lanes: int) -> Count:
        """
        Run all jobs in their order, as lanes become free.

        @return: the sum of the counts.
        """
        threads = [threading.Thread(target=self._lane, daemon=True) for _lane in range(lanes)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(self._tell_s)
                    if thread.is_alive():
                        self._tell(f"{', '.join(self._running) or 'nothing'} running")
        finally:
            self._end_all()
        counts = self.counts.values()
        return Count(
            passed=sum(count.passed for count in counts), failed=sum(count.failed for count in counts)
        )

    def _lane(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            self._tell(f"{job.name} begins")
            self.counts[job.name] = Count(failed=1)  # until the job is counted
            self.counts[job.name] = self._play(job)

    def _play(self, job: Job) -> Count:
        began = time.monotonic()
        process = subprocess.Popen(
            job.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )
        self._running[job.name] = process
        try:
            output, _nothing = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            # An orderly end first: the program has children.
            process.terminate()
            try:
                output, _nothing = process.communicate(timeout=20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _nothing = process.communicate()
            output += f"\n{job.name} was ended after {self._limit_s:.0f} s\n"
        del self._running[job.name]
        count = job.read(output, process.returncode)
        with self._writing:
            self._out.write(output)
        took = time.monotonic() - began
        self._tell(f"{job.name} took {took:.0f} s: {count.passed} passed, {count.failed} failed")
        return count

    def _tell(self, what: str) -> None:
        with self._writing:
            self._out.write(f"[{time.monotonic() - self._began:4.0f} s] {what}\n")
            self._out.flush()

    def _end_all(self) -> None:
        for process in list(self._running.values()):
            process.terminate()
