# -*- test-case-name: tests.damage.test_slice -*-
"""
Plays damage cases: all, or as many as are wanted.

    python -m tests.damage --cases 10000 --seed 1
    python -m tests.damage --seed 1 --first 4711 --cases 1

Every case has a number: a seed has the same cases in the same order each time.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import islice

import click

from dledger.testing.world.running import Effort
from tests.damage.cases import Bench, all_cases, bench


def play(table: Bench, *, first: int, count: int, seed: int, effort: Effort) -> tuple[int, int]:
    """
    Play cases, and print those that fail.

    @param first: number of the first case; a seed's first one is 1.
    @return: how many passed, and how many failed.
    """
    cases = list(islice(all_cases(table.shapes, first - 1 + count, seed), first - 1, None))
    problems = effort.bounded(effort.played(table.run, cases, jobs=1))
    ways: Counter[str] = Counter()
    failed = 0
    for number, (case, problem) in enumerate(zip(cases, problems, strict=False), first):
        ways[case.reading] += 1
        if problem:
            failed += 1
            click.echo(f"{case}: {problem}")
            click.echo(f"again: python -m tests.damage --seed {seed} --first {number} --cases 1")
    click.echo(", ".join(f"{way} {number}" for way, number in sorted(ways.items())))
    return ways.total() - failed, failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Play cases; the last line counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description="Play damage cases.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="number of the first case")
    parser.add_argument("--within", type=float, help="seconds of the processor after which no case begins")
    given = parser.parse_args(arguments)
    effort = Effort(within_s=given.within)
    with bench() as table:
        passed, failed = play(table, first=given.first, count=given.cases, seed=given.seed, effort=effort)
        for outcome, count in sorted(table.seen.items()):
            click.echo(f"{count:7,} {outcome}")
    click.echo(f"seed {given.seed}, {effort.spent_s:.1f} s of the processor")
    click.echo(f"{passed} damage cases passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
