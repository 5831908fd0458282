# -*- test-case-name: tests.test_lanes -*-
"""
Programs that run side by side, one in each lane: they wait for elections and time-outs more than they work.

    python -m tests.lanes processes             each module of tests/processes as one program
    python -m tests.lanes processes --quick     each promise once, for make test
    python -m tests.lanes unit                  all unit tests

The output of a program is written as a whole when it has ended, so that outputs do not mix; meanwhile one
line each says that it began, ended, or still runs. A program that breaks, without naming its failures, is
followed by the command that runs it again. Each program imports the product anew, which takes it seconds, so
quick modules share one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import attrs

from tests.runner.again import TRIAL
from tests.runner.counts import Count, Reader, is_cut_short, judge, read_trial, read_trial_strictly
from tests.runner.stages import ROOT, modules_of, unit_suites
from tests.slowness import patient

NOTIFY_S = 60.0
#: Seconds after which a program is ended: several times the time of the slowest.
LIMIT_S = 1000.0

#: The JVMs of the tests live for seconds: compiling their code for speed would cost a third of their time.
#: Only the launcher is asked: javac would say that it has read JAVA_TOOL_OPTIONS, in the place of its
#: version.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1"


@attrs.frozen
class Suite:
    """
    One folder of test modules.

    @ivar lanes: programs at a time. More than the processors of a small machine where tests mostly wait.
    @ivar longest: the slowest modules come first, so that the lanes end at about the same time.
    @ivar alone: modules that measure: each runs by itself, before the others.
    @ivar together: groups of quick modules, each run as one program, which starts once, after all others.
    @ivar quick: programs for C{make test}, each some modules, classes or tests of the folder.
    @ivar prepare: a program that makes the others faster; it is not a check, and may fail.
    @ivar beside: the others do not wait for it.
    """

    lanes: int
    longest: tuple[str, ...]
    alone: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    quick: tuple[tuple[str, ...], ...] = ()
    prepare: str = ""
    beside: bool = False


SUITES = {
    "hostile": Suite(2, ("test_disks",), alone=(
        "test_forged", "test_peers", "test_brokers", "test_floods",
    ), quick=(
        ("test_forged.TermTests", "test_forged.PushTests", "test_peers.KilledTests"),
        ("test_memory.HalfFrameTests", "test_memory.UnreadAnswerTests.test_pipelined_reads",
         "test_brokers.MemoryTests.test_unread_pulls", "test_brokers.SlavePortTests",
         "test_disks.FullDiskTests.test_all_full"),
        ("test_tls.SecuredGroupTests",),
    )),
    "interop": Suite(5, (
        "test_ha_ours_leads", "test_raft_broker", "test_name_server", "test_ha_ours_follows",
        "test_rocketmq", "test_mixed_groups", "test_query_by_key", "test_java_client", "test_versions",
        "test_raft_transactions", "test_transactions", "test_pop", "test_directories", "test_ha_tls",
        "test_ha_consumers", "test_weaknesses", "test_ha_access", "test_gallop", "test_operator_steps",
        "test_broker_tail", "test_weak_files", "test_clients", "test_stray_leader", "test_java_group",
    ), quick=(
        ("test_ha_ours_leads.ShortStoryTests",),
        ("test_raft_broker.RaftBrokersTests.test_two_of_ours_with_5",),
        ("test_mixed_groups.MixedGroupTests.test_leader_of_either_kind_dies",
         "test_mixed_groups.MixedGroupTests.test_one_of_ours_follows_java"),
    ), prepare="tests.interop.jvms", beside=True),
    "processes": Suite(3, (
        "test_raft_broker", "test_members", "test_broker", "test_group", "test_demo", "test_load",
        "test_chaos", "test_operator", "test_tls", "test_examples", "test_readers", "test_backup",
        "test_archive", "test_broker_tutorial", "test_operations_page", "test_broker_pages",
        "test_secured_pages",
    ), quick=(
        ("test_broker.KillTests", "test_broker.ReplacedTests.test_empty_master", "test_exactly_once",
         "test_machines.KeyValueTests.test_kill_under_load"),
        ("test_demo.DemoTests.test_nothing_lost", "test_demo.JudgeTests", "test_readers.PlaceTests",
         "test_conditions", "test_envelopes"),
        ("test_members.GrowTests", "test_name_server", "test_tls.TlsGroupTests.test_life", "test_chunks"),
        ("test_group.GroupTests",),
        ("test_raft_broker.FailOverTests.test_sends_to_a_follower", "test_raft_broker.JudgeTests",
         "test_chaos.ChaosTests.test_sync", "test_backup.BackupTests"),
        ("test_histories", "test_ledgers", "test_writer", "test_locks", "test_children"),
    )),
    "spark": Suite(2, (
        "test_cluster", "test_sink_kills", "test_exactly_once", "test_sink", "test_live", "test_export_cli",
    ), together=(
        # Each of the first two has one session for all its modules, which takes ten seconds to start.
        ("test_ways", "test_export_spark", "test_groups", "test_lag", "test_benchmark"),
        ("test_source", "test_columnar", "test_pushed", "test_stream", "test_golden", "test_catalog",
         "test_upstream", "test_session"),
        ("test_export", "test_export_engine", "test_sidecar", "test_export_sources", "test_scan",
         "test_sink_crashes", "test_choice", "test_export_follow", "test_export_writers",
         "test_sink_batch", "test_sink_markers", "test_options", "test_own_rows", "test_arrow",
         "test_message_shapes", "test_topic_queues"),
        ("test_seam", "test_members", "test_messages", "test_member_tls", "test_executor", "test_envelopes",
         "test_export_files", "test_bodies", "test_sink_group_log", "test_sink_options",
         "test_sink_staging", "test_docs"),
    ), quick=(
        ("test_sink",),
        ("test_source", "test_columnar", "test_pushed.ScanTests", "test_pushed.PlanTests", "test_stream",
         "test_golden", "test_messages", "test_ways.CountTests", "test_ways.FunctionTests.test_udf",
         "test_ways.RowTests.test_stream"),
        ("test_seam", "test_executor", "test_envelopes", "test_sink_options", "test_sink_markers",
         "test_options", "test_sink_staging", "test_docs", "test_export", "test_scan", "test_sink_crashes",
         "test_choice", "test_sink_batch", "test_archive", "test_own_rows",
         "test_arrow", "test_message_shapes", "test_topic_queues"),
        ("test_export_stores.FaultTests.test_every_call", "test_lake.EndTests.test_every_kind",
         "test_lake.CatalogTests.test_sql"),
    ), prepare="tests.spark.jvms"),
}


UNIT_OTHERS = "others"
#: Programs of unit tests, the slowest first: packages, and modules of packages, of which the package has the
#: other ones. All suites that are not named here run in C{others}.
UNIT_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "groups": ("tests.sim",),
    "brokers": tuple(f"tests.sim.test_{name}" for name in (
        "pairs", "group_traffic", "raft_clients", "bad_pages", "keeper", "replicated_logs", "exams",
        "slips",
    )),
    "crashes": tuple(f"tests.sim.test_{name}" for name in (
        "broker_crashes", "crashes", "search", "mutants", "random_mutants",
    )),
    UNIT_OTHERS: (),
    "broker": ("tests.broker", "tests.namesrv", "tests.raft_broker"),
    "ledger": ("tests.client", "tests.core", "tests.node", "tests.aio", "tests.machine"),
    "files": ("tests.storage", "tests.damage", "tests.fuzz"),
    # These read the whole tree, see tests.sources.
    "house rules": tuple(f"tests.test_{name}" for name in (
        "tidy", "layering", "rooms", "docs", "glossary", "overrides", "sources",
    )),
}
UNIT_LANES = 2


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
        self, jobs: Sequence[Job], out: TextIO, *, notify_s: float = NOTIFY_S, limit_s: float | None = None
    ) -> None:
        self.counts: dict[str, Count] = {}
        self._out = out
        self._notify_s = notify_s
        self._limit_s = patient(LIMIT_S) if limit_s is None else limit_s
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
                    thread.join(self._notify_s)
                    if thread.is_alive():
                        self._notify(f"{', '.join(self._running) or 'nothing'} running")
        finally:
            self._end_all()
        counts = self.counts.values()
        return sum(counts, Count())

    def _lane(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            self._notify(f"{job.name} begins")
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
        count = judge(job.read, output, process.returncode)
        with self._writing:
            self._out.write(output)
        took = time.monotonic() - began
        self._notify(f"{job.name} took {took:.0f} s: {count.passed} passed, {count.failed} failed")
        if is_cut_short(job.read, output, process.returncode):
            words = [word for word in job.command[1:] if not word.startswith("--temp-directory=")]
            self._notify(f"again: python {shlex.join(words)}")
        return count

    def _notify(self, what: str) -> None:
        with self._writing:
            self._out.write(f"[{time.monotonic() - self._began:4.0f} s] {what}\n")
            self._out.flush()

    def _end_all(self) -> None:
        for process in list(self._running.values()):
            process.terminate()


def module_jobs(suite: str, temporary: Path, *, folder: Path | None = None) -> list[Job]:
    """
    One program for each test module of a folder, or for a group of them, the slowest first.

    @param suite: a key of L{SUITES}.
    @param temporary: for the files of trial.
    """
    folder = folder if folder is not None else Path(__file__).parent / suite
    longest, together = SUITES[suite].longest, SUITES[suite].together
    grouped = {name for group in together for name in group}
    modules = sorted(
        (path.stem for path in folder.glob("test_*.py") if path.stem not in grouped),
        key=lambda name: (longest.index(name) if name in longest else len(longest), name),
    )
    programs = (*((name,) for name in modules), *together)
    return [_job(suite, names, temporary) for names in programs]


def quick_jobs(suite: str, temporary: Path) -> list[Job]:
    """What C{make test} has of a folder, see L{module_jobs}."""
    return [_job(suite, names, temporary) for names in SUITES[suite].quick]


def _job(suite: str, names: Sequence[str], temporary: Path) -> Job:
    """One program for some modules, classes or tests of a folder."""
    return Job(
        name=f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0],
        read=read_trial_strictly,
        command=(*TRIAL, f"--temp-directory={temporary / names[0]}",
                 *(f"tests.{suite}.{name}" for name in names)),
    )


def unit_programs(root: Path = ROOT) -> dict[str, list[str]]:
    """The modules and packages of each program of unit tests."""
    where = {name: program for program, names in UNIT_PROGRAMS.items() for name in names}
    apart = {name.rpartition(".")[0] for name in where} - {"tests"}
    found: dict[str, list[str]] = {program: [] for program in UNIT_PROGRAMS}
    for suite in unit_suites(root):
        for name in modules_of(suite, root) if suite in apart else [suite]:
            found[where.get(name) or where.get(suite, UNIT_OTHERS)].append(name)
    return found


def unit_jobs(temporary: Path) -> list[Job]:
    """The programs of unit tests, the slowest first."""
    return [
        Job(name=name, read=read_trial, command=(*TRIAL, f"--temp-directory={temporary / name}", *suites))
        for name, suites in unit_programs().items()
    ]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that may still run."""
    process.terminate()
    process.wait()


def run_units() -> Count:
    """Run all unit tests; they need no process but their own, and a skip is no failure."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        return Lanes(unit_jobs(Path(temporary)), sys.stdout).run(UNIT_LANES)


def run_suite(suite: str, *, first: Sequence[Job] = (), lanes: int = 0, is_quick: bool = False) -> Count:
    """
    Run every module of a suite, reporting the progress on standard output.

    @param first: jobs to begin with.
    @param lanes: instead of the suite's own number.
    @param is_quick: run what C{make test} has of it.
    """
    os.environ.setdefault("JDK_JAVA_OPTIONS", JVM_OPTIONS)
    with contextlib.ExitStack() as held:
        if prepare := SUITES[suite].prepare:
            preparing = subprocess.Popen([sys.executable, "-m", prepare])
            held.callback(_end, preparing)
            if not SUITES[suite].beside:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    preparing.wait(LIMIT_S)
        temporary = Path(held.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        jobs = quick_jobs(suite, temporary) if is_quick else module_jobs(suite, temporary)
        alone = [job for job in jobs if job.name in SUITES[suite].alone]
        others = [*first, *(job for job in jobs if job not in alone)]
        count = Lanes(alone, sys.stdout).run(1)
        return count + Lanes(others, sys.stdout).run(lanes or SUITES[suite].lanes)


def main(arguments: Sequence[str] | None = None) -> int:
    """@return: exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description="Run modules side by side.")
    parser.add_argument("suite", choices=[*SUITES, "unit"])
    parser.add_argument("--lanes", type=int, default=0, help="programs at a time")
    parser.add_argument("--quick", action="store_true", help="what make test has of the suite")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the programs are ended, too
    if options.suite == "unit":
        count = run_units()
    else:
        count = run_suite(options.suite, lanes=options.lanes, is_quick=options.quick)
    sys.stdout.write(f"{count.passed} tests passed, {count.failed} failed, {count.skipped} skipped\n")
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
