# -*- test-case-name: tests.test_roads -*-
"""
How long the roads are: the calls of our functions between a caller's call and its answer, on all machines
together, in how many functions and modules.

    python -m tests.roads            show them beside tests/roads.txt
    python -m tests.roads --write    keep shorter ones; a longer one is refused

The simulators, whose parts lie between, and what their checks call do not count, nor do comprehensions and
what attrs makes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import attrs
import click

from tests import walk_runs
from tests.walks import Calls

BASELINE = Path(__file__).with_name("roads.txt")
_RIGS = ("/dledger/testing/",)


@attrs.frozen(order=False)
class Road:
    """The length of one. Its text is a line of the baseline."""

    calls: int
    functions: int
    modules: int

    def __str__(self) -> str:
        return f"{self.calls} calls, {self.functions} functions, {self.modules} modules"

    def is_longer(self, than: Road) -> bool:
        """Whether one of the three has grown."""
        return (
            self.calls > than.calls or self.functions > than.functions or self.modules > than.modules
        )


def road_of(calls: Calls) -> Road:
    """The length of a run, up to the answer of its caller."""
    codes = calls.codes if calls.answered < 0 else calls.codes[: calls.answered]
    ours = [
        code for code in codes
        if not code.co_name.startswith("<") and not code.co_filename.startswith("<attrs")
        and not any(rig in code.co_filename for rig in _RIGS)
    ]
    return Road(len(ours), len(set(ours)), len({code.co_filename for code in ours}))


def _rows() -> Calls:
    from tests.spark import walk_runs as with_arrow  # Arrow need not be installed

    with tempfile.TemporaryDirectory() as folder:
        return with_arrow.rows(f"{folder}/n0")


ROADS: dict[str, Callable[[], Calls]] = {
    "append": walk_runs.append,
    "command": walk_runs.command,
    "commit of a reader": walk_runs.reader_commit,
    "put": walk_runs.put,
    "raft put": walk_runs.raft_put,
    "100 rows": _rows,
}


def parsed(text: str) -> dict[str, Road]:
    """
    The roads of a baseline, by name.

    @raise ValueError: a line is none.
    """
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(": ")
        words = rest.replace(",", "").split()
        if not colon or words[1::2] != ["calls", "functions", "modules"]:
            raise ValueError(f"not a road: {line!r}")
        found[name] = Road(*map(int, words[::2]))
    return found


def complaints(now: Mapping[str, Road], known: Mapping[str, Road]) -> list[str]:
    """A sentence for each road that differs from its line in the baseline."""
    found = []
    for name, road in now.items():
        if name not in known:
            found.append(f"{name} is new: --write keeps it")
        elif road.is_longer(known[name]):
            found.append(f"{name} is longer than before")
        elif road != known[name]:
            found.append(f"{name} is shorter: --write keeps that")
    return found


def main(arguments: list[str]) -> int:
    """Show the roads, and keep them if asked to. @return: the exit status."""
    known = parsed(BASELINE.read_text("utf-8")) if BASELINE.exists() else {}
    now = {
        name: road_of(run()) for name, run in ROADS.items() if run is not _rows or find_spec("pyarrow")
    }
    found = complaints(now, known)
    for name, road in now.items():
        click.echo(f"{name}: {road}; in the baseline {known.get(name, 'nothing')}")
    for complaint in found:
        click.echo(complaint)
    if "--write" not in arguments or any("longer" in complaint for complaint in found):
        return bool(found)
    BASELINE.write_text("".join(f"{name}: {road}\n" for name, road in {**known, **now}.items()), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
