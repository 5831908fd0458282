# -*- test-case-name: tests.damage.test_slice -*-
"""C{python -m tests.damage}: all cases, or as many as are wanted."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter

import click

from tests.damage.cases import all_cases, bench


def main() -> int:
    """Run cases; the failures are listed, and the last line counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which no case begins")
    given = parser.parse_args()
    begin_s = time.monotonic()
    failed = played = 0
    ways: Counter[str] = Counter()
    with bench() as table:
        for case in all_cases(table.shapes, given.cases, given.seed):
            if time.monotonic() - begin_s >= given.within:
                break
            played += 1
            ways[case.reading] += 1
            problem = table.run(case)
            if problem:
                failed += 1
                click.echo(f"{case}: {problem}")
        for outcome, count in sorted(table.seen.items()):
            click.echo(f"{count:7,} {outcome}")
        click.echo(", ".join(f"{way} {count}" for way, count in sorted(ways.items())))
    click.echo(f"seed {given.seed}, {time.monotonic() - begin_s:.1f} s")
    click.echo(f"{played - failed} damage cases passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
