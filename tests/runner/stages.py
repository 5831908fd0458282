# -*- test-case-name: tests.runner.test_stages -*-
"""
The stages of C{make test} and of C{make test-all}: a command each, a budget, and a reader of its output.

C{make test} has every kind of check, within the budgets below: 12 minutes on two idle cores.
C{make test-all} has every check there is, and promises no time.

Rule 1: a stage keeps its budget because it does less (schedules, cases, mutants), not because it is killed.
Its work is bounded in seconds of the processor, which other programs do not shorten: on a busy machine it
takes longer. Only one that hangs is ended, after L{HANGS_AFTER} budgets.
Rule 2: nothing is drawn. Seeds are written here, so two runs of a tree look at the same things.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from tests.runner.again import TRIAL, Finder, again_of_lines, again_of_mutants, again_of_trial
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
PROMISE_S = 720
#: Number of its budgets after which a stage counts as hanging.
HANGS_AFTER = 6

LANES = (PYTHON, "-m", "tests.lanes")


@attrs.frozen(kw_only=True)
class Stage:
    """
    One step of a run.

    @ivar budget_s: seconds that it may take on two idle cores.
    @ivar read: from the whole output and the exit status to the count.
    @ivar counts: name of one unit of the count, for the table.
    @ivar again: from the output to the things that failed, each of which is looked at once more, alone.
    @ivar skips_fail: a skipped test has failed, because the machine lacks a requirement of it.
    @ivar joins: it runs beside the stage before it, and uses the processors that the other one leaves idle.
        Only for stages in which nothing depends on the time of day.
    """

    name: str
    command: tuple[str, ...]
    budget_s: int
    read: Reader
    counts: str
    again: Finder = again_of_trial
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


def modules_of(package: str, root: Path = ROOT) -> list[str]:
    """The test modules of a package, those of packages in it, too."""
    paths = sorted(root.joinpath(*package.split(".")).rglob("test_*.py"))
    return [".".join(path.relative_to(root).with_suffix("").parts) for path in paths]


def _program(module: str, *words: str) -> tuple[str, ...]:
    return (PYTHON, "-m", module, *words)


def _lint() -> Stage:
    sources = tuple(source for source in SOURCES if (ROOT / source).exists())
    return Stage(name="lint", command=_program("ruff", "check", *sources), budget_s=5, read=read_check,
                 counts="check")


def _types() -> Stage:
    return Stage(name="types", command=_program("mypy"), budget_s=35, read=read_check, counts="check")


def _unit(suites: Sequence[str], *, budget_s: int) -> Stage:
    command = (*TRIAL, *suites) if suites else (*LANES, "unit")
    return Stage(name="unit", command=command, budget_s=budget_s, counts="tests", skips_fail=False,
                 read=read_trial if suites else read_total(SUMMARY))


def _prices() -> Stage:
    """What every request costs, with large states; a sample of it is a unit test."""
    return Stage(name="prices", command=_program("tests.prices", "--scale", "0.02"), budget_s=300,
                 read=read_check, counts="check")


def _simulated(*within_s: int, budget_s: int, joins: bool = False) -> list[Stage]:
    """
    Groups, masters and slaves, and brokers on raft logs.

    @param within_s: seconds of the processor for each of the three.
    """
    return [
        Stage(name=name, budget_s=budget_s, read=read_total(SCHEDULES), counts="schedules", joins=joins,
              again=again_of_lines,
              command=_program(*words, "--schedules", "1000", "--seed", "1", "--jobs", "2", "--within",
                               str(seconds), "--at-least", str(at_least)))
        for seconds, (name, words, at_least) in zip(within_s, (
            ("sim", ("dledger.testing", "--corpus", "tests/sim/schedules.txt", "--read-only"), 40),
            ("sim-pairs", ("dledger.testing.brokers",), 25),
            ("sim-raft", ("dledger.testing.raft_brokers",), 10),
        ), strict=True)
    ]


def _damaged(*words: str, budget_s: int) -> list[Stage]:
    """Damaged files; beside them random bytes to every decoder, and each failure of each file."""
    kept = {"read": read_total(SUMMARY), "again": again_of_lines}
    return [
        Stage(name="damage", command=_program("tests.damage", "--cases", "10000", "--seed", "1", *words),
              budget_s=budget_s, counts="cases", **kept),
        Stage(name="fuzz", budget_s=budget_s, counts="targets", joins=True,
              command=_program("tests.fuzz.run", "--executions", "20000", "--seed", "1", *words), **kept),
        Stage(name="file-table", budget_s=2 * budget_s, counts="cases", joins=True,
              command=_program("tests.damage.table_play", "--seed", "1", *words), **kept),
    ]


def _mutants(*words: str, budget_s: int) -> Stage:
    return Stage(name="mutants", command=_program("tests.mutants", *words), budget_s=budget_s,
                 read=read_total(MUTANTS), again=again_of_mutants, counts="mutants")


def _lanes(name: str, *words: str, budget_s: int) -> Stage:
    return Stage(name=name, command=(*LANES, name, *words), budget_s=budget_s, read=read_total(SUMMARY),
                 counts="tests")


def quick_stages(suites: Sequence[str] = ()) -> list[Stage]:
    """
    C{make test}: cheap stages first.

    @param suites: unit tests to run instead of all.
    """
    budgets = (("processes", 120), ("hostile", 60), ("spark", 120), ("interop", 120))
    return [
        _lint(),
        _types(),
        _unit(suites, budget_s=210),
        _mutants("--pinned", "--within", "60", budget_s=40),
        *_damaged("--within", "20", budget_s=30),
        *(_lanes(name, "--quick", budget_s=budget_s) for name, budget_s in budgets),
        # Brokers of Java's mostly wait for each other.
        *_simulated(60, 50, 30, budget_s=120, joins=True),
    ]


def all_stages(suites: Sequence[str] = ()) -> list[Stage]:
    """
    C{make test-all}: every check there is.

    @param suites: unit tests to run instead of all.
    """
    return [
        _lint(),
        _types(),
        _unit(suites, budget_s=300),
        _mutants("--seconds", "20", budget_s=600),
        *_damaged(budget_s=120),
        _lanes("processes", budget_s=900),
        _lanes("hostile", budget_s=600),
        _prices(),
        Stage(name="browser", command=(*TRIAL, "tests.browser"), budget_s=120, read=read_trial_strictly,
              counts="tests"),
        # Without PySpark the test modules cannot be imported, which counts as a failure.
        _lanes("spark", budget_s=900),
        Stage(name="interop", command=_program("tests.interop"), budget_s=1400, read=read_total(SUMMARY),
              counts="tests"),
        *_simulated(600, 600, 600, budget_s=310),
    ]
