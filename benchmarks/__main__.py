# -*- test-case-name: tests.test_benchmarks -*-
"""
The measurements: a list, and each by its name.

    python -m benchmarks
    python -m benchmarks append --quick
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click

#: Programs, in the order of the list; the other modules are parts of them.
PROGRAMS = (
    "append", "many", "latency", "reads", "failover", "catch_up", "open_ledger", "programs", "table", "guard",
    "broker", "drain", "ha", "spark_scan", "spark_sink",
)


def purpose_of(name: str) -> str:
    """The first sentence of a program's docstring."""
    text = (Path(__file__).parent / f"{name}.py").read_text("utf-8").split('"""')[1]
    return " ".join(text.split("\n\n")[0].split())


def main(words: list[str]) -> int:
    """Run the program that the first word names; without words print the list. @return: exit status."""
    if not words:
        for name in PROGRAMS:
            click.echo(f"{name:12} {purpose_of(name)}")
        return 0
    if words[0] not in PROGRAMS:
        click.echo(f"no benchmark {words[0]!r}: {', '.join(PROGRAMS)}", err=True)
        return 64
    sys.argv = [f"benchmarks.{words[0]}", *words[1:]]
    runpy.run_module(f"benchmarks.{words[0]}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
