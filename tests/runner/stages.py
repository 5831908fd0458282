# -*- test-case-name: tests.runner.test_stages -*-
"""
The stages of C{make test} and of C{make test-all}: a command each, a budget, and a reader of its output.

C{make test} has every kind of check, within the budgets below: 15 minutes on two idle cores.
C{make test-all} has every check there is, and promises no time.

Rule: a stage keeps its budget because it does less (schedules, cases, mutants), not because it is killed.
Only one that hangs is ended, after L{HANGS_AFTER} budgets.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from tests.runner.counts import (
    MUTANTS,
    SCHEDULES,
    SUMMARY,
    Reader,
    read_check,
    read_total,
    read_trial,
    read_trial_strictly,
)

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = sys.executable
SOURCES = ("dledger", "protocols", "tests", "benchmarks", "demo", "examples", "twisted", "setup.py")

#: Parts of C{tests/} that are separate stages: slow, or in need of processes, a JVM or Spark.
SEPARATE = ("browser", "hostile", "interop", "processes", "spark")

#: Seconds in which C{make test} ends on two idle cores.
PROMISE_S = 900
#: Number of its budgets after which a stage counts as hanging.
HANGS_AFTER = 6

TRIAL = (PYTHON, "-m", "twisted.trial", "--reporter=timing")
LANES = (PYTHON, "-m", "tests.lanes")


@attrs.frozen(kw_only=True)
class Stage:
    """
    One step of a run.

    @ivar budget_s: seconds that it may take on two idle cores.
    @ivar read: from the whole output and the exit status to the count.
    @ivar counts: name of one unit of the count, for the table.
    @ivar skips_fail: a skipped test has failed, because the machine lacks a requirement of it.
    @ivar joins: it runs beside the stage before it, and uses the processors that the other one leaves idle.
        Only for stages in which nothing depends on the time of day.
    """

    name: str
    command: tuple[str, ...]
    budget_s: int
    read: Reader
    counts: str
    joins: bool = False
    skips_fail: bool = True


def unit_suites(root: Path = ROOT) -> list[str]:
    """The parts of C{tests/} that are unit tests: all except L{SEPARATE}, so that none is forgotten."""
    found = []
    for path in sorted((root / "tests").iterdir()):
        if path.is_dir() and (path / "__init__.py").exists() and path.name not in SEPARATE:
            if any(path.rglob("test_*.py")):
                found.append(f"tests.{path.name}")
        elif path.suffix == ".py" and path.name.startswith("test_"):
            found.append(f"tests.{path.stem}")
    return found


def _program(module: str, *words: str) -> tuple[str, ...]:
    return (PYTHON, "-m", module, *words)


def _lint() -> Stage:
    sources = tuple(source for source in SOURCES if (ROOT / source).exists())
    return Stage(name="lint", command=_program("ruff", "check", *sources), budget_s=10, read=read_check,
                 counts="check")


def _types() -> Stage:
    return Stage(name="types", command=_program("mypy"), budget_s=60, read=read_check, counts="check")


def _unit(suites: Sequence[str], *, budget_s: int) -> Stage:
    command = (*TRIAL, *suites) if suites else (*LANES, "unit")
    return Stage(name="unit", command=command, budget_s=budget_s, counts="tests", skips_fail=False,
                 read=read_trial if suites else read_total(SUMMARY))


def _simulated(*, within_s: int, pairs_within_s: int, joins: bool = False) -> list[Stage]:
    """Groups, the logs of masters and slaves, and whole masters and slaves with their clients."""
    return [
        Stage(name=name, budget_s=seconds + 10, read=read_total(SCHEDULES), counts="schedules", joins=joins,
              command=_program(*words, "--schedules", "1000", "--seed", "1", "--jobs", "2", "--within",
                               str(seconds)))
        for name, words, seconds in (
            ("sim", ("dledger.testing", "--corpus", "tests/sim/schedules.txt", "--read-only"), within_s),
            ("sim-ha", ("dledger.testing.brokers", "--logs"), within_s),
            ("sim-pairs", ("dledger.testing.brokers",), pairs_within_s),
        )
    ]


def _simulated_raft_brokers(*, within_s: int) -> Stage:
    """Groups of brokers on raft logs with the clients of masters and slaves."""
    return Stage(
        name="sim-raft", budget_s=within_s + 10, read=read_total(SCHEDULES), counts="schedules",
        command=_program("dledger.testing.raft_brokers", "--clients", "--seeds", "1..1000", "--jobs", "2",
                         "--within", str(within_s)),
    )


def quick_stages(suites: Sequence[str] = ()) -> list[Stage]:
    """
    C{make test}: cheap stages first.

    @param suites: unit tests to run instead of all.
    """
    summed_up = {"read": read_total(SUMMARY)}
    damage = ("--cases", "10000", "--seed", "1", "--within", "30")
    fuzz = ("--executions", "20000", "--seed", "1", "--within", "30")
    return [
        _lint(),
        _types(),
        _unit(suites, budget_s=200),
        Stage(name="mutants", command=_program("tests.mutants", "--pinned", "--within", "80"),
              budget_s=50, read=read_total(MUTANTS), counts="mutants"),
        Stage(name="damage", command=_program("tests.damage", *damage), budget_s=40, counts="cases",
              **summed_up),
        Stage(name="fuzz", command=_program("tests.fuzz.run", *fuzz), budget_s=40, counts="targets",
              joins=True, **summed_up),
        *(
            Stage(name=name, command=(*LANES, name, "--quick"), budget_s=budget_s, counts="tests",
                  **summed_up)
            for name, budget_s in (("processes", 110), ("hostile", 90), ("spark", 110), ("interop", 130))
        ),
        # Brokers of Java's mostly wait for each other.
        *_simulated(within_s=85, pairs_within_s=85, joins=True),
    ]


def all_stages(suites: Sequence[str] = ()) -> list[Stage]:
    """
    C{make test-all}: every check there is.

    @param suites: unit tests to run instead of all.
    """
    summed_up = {"read": read_total(SUMMARY)}
    return [
        _lint(),
        _types(),
        _unit(suites, budget_s=300),
        Stage(name="mutants", command=_program("tests.mutants", "--seconds", "20"), budget_s=600,
              read=read_total(MUTANTS), counts="mutants"),
        Stage(name="damage", command=_program("tests.damage", "--cases", "10000", "--seed", "1"),
              budget_s=120, counts="cases", **summed_up),
        Stage(name="fuzz", command=_program("tests.fuzz.run", "--executions", "20000", "--seed", "1"),
              budget_s=120, counts="targets", joins=True, **summed_up),
        Stage(name="processes", command=(*LANES, "processes"), budget_s=900, counts="tests", **summed_up),
        Stage(name="hostile", command=(*LANES, "hostile"), budget_s=600, counts="tests", **summed_up),
        Stage(name="browser", command=(*TRIAL, "tests.browser"), budget_s=120, read=read_trial_strictly,
              counts="tests"),
        # Without PySpark the test modules cannot be imported, which counts as a failure.
        Stage(name="spark", command=(*LANES, "spark"), budget_s=900, counts="tests", **summed_up),
        Stage(name="interop", command=_program("tests.interop"), budget_s=1400, counts="tests", **summed_up),
        *_simulated(within_s=300, pairs_within_s=300),
        _simulated_raft_brokers(within_s=300),
    ]
