# -*- test-case-name: tests.sim.test_coverage_of_rigs -*-
"""
Which statements the simulators execute, room by room: a rig finds no fault where none of its schedules goes.

    python -m tests.coverage_of_rigs                          # the table of docs/trust.md, ten minutes
    python -m tests.coverage_of_rigs --only group --schedules 5
    python -m tests.coverage_of_rigs --missing dledger/machine      # the functions that no schedule enters
    python -m tests.coverage_of_rigs --largest 20 --room dledger/core   # those with the most statements left
    python -m tests.coverage_of_rigs --left-out         # what stays out, and why

A rig plays each of its kinds once, a focus for example, then schedules as its seeds draw them: the figure is
of all that can be played, not of thirty draws.

Counted are statements in functions: those of modules and classes run when they are imported. A statement
counts as executed if one of its lines was; of a compound one, the lines before its body. Docstrings and
declarations without a value are none.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs
import click

ROOT = Path(__file__).resolve().parent.parent
#: What no schedule enters, each with a reason.
LEFT_OUT = ROOT / "tests" / "rigs_left_out.txt"
#: Folders whose statements are counted, in the order of the table; a module counts in the first that has it.
ROOMS = (
    "dledger/core", "dledger/machine", "dledger/node", "dledger/raft_broker", "dledger/storage",
    "dledger/rocketmq/broker/store", "dledger/rocketmq/broker/ha", "dledger/rocketmq/broker/consuming",
    "dledger/rocketmq/broker/popping", "dledger/rocketmq/broker/sending",
    "dledger/rocketmq/broker/transactions", "dledger/rocketmq/broker/delays",
    "dledger/rocketmq/broker/metadata", "dledger/rocketmq/broker/admin", "dledger/rocketmq/broker/client",
    "dledger/rocketmq/broker",
)


@attrs.frozen
class Statement:
    """
    @ivar function: its name with those of the classes around it.
    @ivar begin, end: its first and its last line, inclusive; of a compound one, up to its body.
    """

    function: str
    begin: int
    end: int


def statements_of(source: str) -> list[Statement]:
    """The statements in all functions of a module."""
    return list(_in_block(ast.parse(source).body, "", is_function=False))


def _in_block(block: Sequence[ast.stmt], name: str, *, is_function: bool) -> Iterator[Statement]:
    for node in block:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_declared = isinstance(node, ast.AnnAssign) and node.value is None
        if is_text or is_declared or isinstance(node, (ast.Global, ast.Nonlocal)):
            continue
        blocks = [value for _, value in ast.iter_fields(node) if _is_block(value)]
        handlers = [one for _, value in ast.iter_fields(node) if isinstance(value, list)
                    for one in value if isinstance(one, (ast.ExceptHandler, ast.match_case))]
        if is_function:
            inner = [one.lineno for part in blocks for one in part] + [
                one.lineno if isinstance(one, ast.ExceptHandler) else one.pattern.lineno for one in handlers
            ]
            end = min(inner, default=0) - 1 if inner else node.end_lineno or node.lineno
            yield Statement(name, node.lineno, max(end, node.lineno))
        deeper, is_inside = name, is_function
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            deeper = f"{name}.{node.name}" if name else node.name
            is_inside = not isinstance(node, ast.ClassDef)
        for part in (*blocks, *(one.body for one in handlers)):
            yield from _in_block(part, deeper, is_function=is_inside)


def _is_block(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], ast.stmt)


class LineCounter:
    """
    The lines of some files that are executed, each noted once: a line costs little after that, or nothing.

    @ivar lines: of each file, by its path.
    """

    def __init__(self, is_counted: Callable[[str], bool]) -> None:
        """@param is_counted: says whether the lines of a file count."""
        self._is_counted = is_counted
        self.lines: dict[str, set[int]] = {}
        #: By the id of a code, which is kept, too: the lines that were not executed yet; empty: none counts.
        self._left: dict[int, tuple[CodeType, set[int]]] = {}

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count within."""
        monitoring: Any = getattr(sys, "monitoring", None)  # of Python 3.12
        if monitoring is not None:
            tool, event = monitoring.COVERAGE_ID, monitoring.events.LINE
            monitoring.use_tool_id(tool, "rigs")
            monitoring.register_callback(tool, event, self._line)
            monitoring.set_events(tool, event)
            monitoring.restart_events()  # lines that an earlier counter has seen come again
            try:
                yield
            finally:
                monitoring.set_events(tool, 0)
                monitoring.free_tool_id(tool)
            return
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _line(self, code: CodeType, line: int) -> object:
        if self._is_counted(code.co_filename):
            self.lines.setdefault(code.co_filename, set()).add(line)
        return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]

    def _called(self, frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        code = frame.f_code
        found = self._left.get(id(code))
        if found is None:
            lines = {line for _, _, line in code.co_lines() if line is not None}
            found = self._left[id(code)] = code, lines if self._is_counted(code.co_filename) else set()
        return self._traced if found[1] else None

    def _traced(self, frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        if event != "line":
            return self._traced
        code, left = self._left[id(frame.f_code)]
        if frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self.lines.setdefault(code.co_filename, set()).add(frame.f_lineno)
        return self._traced if left else None


@attrs.frozen
class Covered:
    """The statements of one module. @ivar executed: those of them that were."""

    module: str
    statements: tuple[Statement, ...]
    executed: frozenset[Statement]

    @property
    def entered(self) -> set[str]:
        """Names of the functions of which a statement was executed."""
        return {one.function for one in self.executed}


@functools.cache
def _statements_in(path: Path) -> list[Statement]:
    return statements_of(path.read_text(encoding="utf-8"))


def covered(path: Path, lines: set[int]) -> Covered:
    """@param lines: of the module that were executed."""
    found = _statements_in(path)
    executed = frozenset(one for one in found if not lines.isdisjoint(range(one.begin, one.end + 1)))
    return Covered(path.stem, tuple(found), executed)


def room_of(path: Path) -> str:
    """The room of a module; empty: it is in none."""
    name = path.relative_to(ROOT).as_posix()
    return next((room for room in ROOMS if name.startswith(f"{room}/")), "")


# -- rigs ------------------------------------------------------------------------------------------------


def _group(seed: int) -> None:
    from dledger.testing.group.focuses import run_drawn_schedule

    run_drawn_schedule(seed)


def _pairs(seed: int) -> None:
    from dledger.testing.brokers.pair_schedule import run_pair_schedule

    run_pair_schedule(seed)


def _logs(seed: int) -> None:
    from dledger.testing.brokers.schedule import run_ha_schedule

    run_ha_schedule(seed)


def _raft_brokers(seed: int) -> None:
    from dledger.testing.raft_brokers.schedule import run_seed

    with contextlib.suppress(AssertionError):
        run_seed(seed)


def _raft_clients(seed: int) -> None:
    from dledger.testing.raft_brokers.client_schedule import run_raft_clients

    run_raft_clients(seed)


def _crashes(seed: int) -> None:
    from dledger.testing.crashes.__main__ import CutsWanted, cut_story, story_names

    number = seed % len(story_names())
    cut_story(CutsWanted(number=number, seed=seed, share=0.003, second_share=0.003))


#: By the name in the table: plays the schedule of a seed.
RIGS: Mapping[str, Callable[[int], None]] = {
    "group": _group, "pairs": _pairs, "logs": _logs, "raft brokers": _raft_brokers,
    "raft clients": _raft_clients, "crashes": _crashes,
}


def _scenario(path: Path) -> None:
    from dledger.testing.group.scenario import Scenario

    Scenario(path.read_text(encoding="utf-8"), name=path.name).run()


def _group_kinds() -> list[Callable[[], object]]:
    """Every scenario; each focus, with machines and with a liar: two seeds of each."""
    from dledger.testing.group.focuses import FOCUSES, run_drawn_schedule
    from dledger.testing.group.liars import run_lying_schedule
    from dledger.testing.group.short_logs import run_machine_schedule

    runs: list[Callable[[int], object]] = [
        *(functools.partial(run_drawn_schedule, focus_name=name) for name in FOCUSES),
        run_machine_schedule, run_lying_schedule,
    ]
    scenarios = sorted((ROOT / "tests" / "scenarios").glob("*.txt"))
    return [
        *(functools.partial(_scenario, path) for path in scenarios),
        *(functools.partial(run, seed) for number, run in enumerate(runs)
          for seed in (number, 1000 + number)),
    ]


def _crash_kinds() -> list[Callable[[], object]]:
    """Every workload, and some flips of every directory."""
    from dledger.testing.crashes.__main__ import FlipsWanted, flip_situation, story_names
    from dledger.testing.crashes.ledger_flips import situations

    flips = [functools.partial(flip_situation, FlipsWanted(number=number, every=101, offset=0))
             for number, _ in enumerate(situations())]
    return [*(functools.partial(_crashes, number) for number, _ in enumerate(story_names())), *flips]


def _pair_kinds() -> list[Callable[[], object]]:
    """
    Old files, disks that cannot read, and the stories of groups, which not every seed draws; slaves that
    become masters.
    """
    from dledger.testing.brokers.pair_schedule import PairFocus, run_pair_schedule

    focuses = (
        PairFocus(ages=True, slaves=2), PairFocus(faults=("spoil_queue", "read_error", "kill"), pace_s=0.7),
        PairFocus(faults=("promote", "age", "kill", "fill_disk"), slaves=2, pace_s=1.0),
        PairFocus(faults=("spoil_log", "cut_client", "spoil_log"), pace_s=1.0),
        PairFocus(faults=("spoil_log", "spoil_queue", "kill", "lose_power"), pace_s=0.7),
        PairFocus(faults=("nothing",), groups=True),
        PairFocus(groups=True), PairFocus(groups=True, slaves=2),
        PairFocus(faults=("kill", "promote", "cut_client"), groups=True, pace_s=1.5),
        PairFocus(faults=("fail_start", "stop", "lose_files", "spoil_queue"), pace_s=0.7),
    )
    return [functools.partial(run_pair_schedule, seed, focus=focus) for seed, focus in enumerate(focuses, 1)]


def _raft_client_kinds() -> list[Callable[[], object]]:
    """As L{_pair_kinds}, of groups on raft logs."""
    from dledger.testing.raft_brokers.client_schedule import run_raft_clients

    kinds = (
        (("spoil_queue", "read_error", "kill"), False), (("age", "hand_over", "cut_off", "fill_disk"), False),
        (("nothing",), True), ((), True), ((), True),
        (("spoil_log", "spoil_log", "kill", "hand_over"), False),
        (("append_strangely", "kill", "hand_over"), False), (("age", "age", "kill", "spoil_log"), False),
        (("spoil_log", "lose_files", "kill"), False), (("fail_start", "stop", "lose_files"), False),
        (("fail_start", "stop", "stop"), False),
        (("lose_files", "lose_files", "hand_over_in_vain"), False),
    )
    return [functools.partial(run_raft_clients, seed, faults=faults, groups=groups)
            for seed, (faults, groups) in enumerate(kinds, 1)]


#: By the name of a rig: makes the plays of all its kinds, one each. A rig that is not here has one kind.
KINDS: dict[str, Callable[[], list[Callable[[], object]]]] = {
    "group": _group_kinds, "pairs": _pair_kinds, "raft clients": _raft_client_kinds,
    "crashes": _crash_kinds,
}


def counter_of_rooms() -> LineCounter:
    """Counts the lines of all rooms. (Those of the rig itself would cost as much again.)"""
    roots = tuple(str(ROOT / room) + "/" for room in ROOMS)
    return LineCounter(lambda name: name.startswith(roots))


def executed_by(rig: str, seeds: range) -> dict[str, set[int]]:
    """Play a rig: each of its kinds, then the schedules of seeds. @return: the executed lines by file."""
    counter = counter_of_rooms()
    kinds = KINDS[rig]() if rig in KINDS else []
    with counter.counting():
        for play in kinds:
            play()
        for seed in seeds:
            RIGS[rig](seed)
    return counter.lines


# -- what stays out --------------------------------------------------------------------------------------


@attrs.frozen
class LeftOut:
    """
    A part of the product that no schedule enters, and why.

    @ivar path: of a module, below the repository; or of a folder, with a slash at its end: all its modules.
    @ivar name: of a function or a class; empty: the whole module.
    """

    path: str
    name: str
    reason: str

    def has(self, path: str, function: str) -> bool:
        """Whether a function of a module is a part of this."""
        if self.path.endswith("/"):
            return path.startswith(self.path)
        return path == self.path and (not self.name or f"{function}.".startswith(f"{self.name}."))


def left_out_of(text: str) -> list[LeftOut]:
    """
    @param text: lines C{path[: name] -- reason}; a C{#} begins a comment.
    @raise ValueError: a line is none of these.
    """
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        what, dashes, reason = line.partition(" -- ")
        path, _, name = what.strip().partition(": ")
        is_part = path.endswith(".py") or (path.endswith("/") and not name)
        if not (dashes and reason.strip() and is_part):
            raise ValueError(f"not 'path[: name] -- reason': {line}")
        found.append(LeftOut(path, name, reason.strip()))
    return found


def stale(left_out: Sequence[LeftOut], lines: Mapping[str, set[int]]) -> list[str]:
    """Sentences about what is not there any more, or is executed. @param lines: executed ones, by file."""
    told = []
    for one in left_out:
        here = [(path.relative_to(ROOT).as_posix(), covered(path, lines.get(str(path), set())))
                for path in modules_of(one)]
        what = f"{one.path}: {one.name}" if one.name else one.path
        entered = sorted(name for path, found in here for name in found.entered if one.has(path, name))
        if not any(one.has(path, each.function) for path, found in here for each in found.statements):
            told.append(f"{what} is left out, but is not there")
        elif entered:
            told.append(f"{what} is left out, but {entered[0]} is executed")
    return told


def modules_of(one: LeftOut) -> list[Path]:
    """Those of which something is left out; those of a folder in their order."""
    path = ROOT / one.path
    if one.path.endswith("/"):
        return sorted(path.rglob("*.py"))
    return [path] if path.is_file() else []


def left_out_table(left_out: Sequence[LeftOut]) -> list[str]:
    """The lines of a Markdown table: what stays out, its number of statements, and the reason."""
    rows = ["| Stays out | statements | because |", "|---|---|---|"]
    for one in left_out:
        count = sum(one.has(path.relative_to(ROOT).as_posix(), statement.function)
                    for path in modules_of(one) for statement in _statements_in(path))
        what = one.path.removeprefix("dledger/") + (f": {one.name}" if one.name else "")
        rows.append(f"| `{what}` | {count} | {one.reason} |")
    return rows


# -- tables ----------------------------------------------------------------------------------------------


def table(by_rig: Mapping[str, Mapping[str, set[int]]], left_out: Sequence[LeftOut] = ()) -> list[str]:
    """
    The lines of a Markdown table: percent of the statements of each room, by each rig and by all; then the
    number of those that are left out, and the percent of the others.
    """
    paths = sorted((ROOT / "dledger").rglob("*.py"))
    rows = [f"| Room | statements | {' | '.join(by_rig)} | all | left out | of the others |",
            "|---|---|" + "---|" * (len(by_rig) + 3)]
    for room in ROOMS:
        modules = [path for path in paths if room_of(path) == room]
        counts: collections.Counter[str] = collections.Counter()
        for path in modules:
            name = path.relative_to(ROOT).as_posix()
            every: set[int] = set()
            for rig, files in by_rig.items():
                lines = files.get(str(path), set())
                every |= lines
                counts[rig] += len(covered(path, lines).executed)
            found = covered(path, every)
            counts["all"] += len(found.executed)
            counts[""] += len(found.statements)
            counts["out"] += sum(any(one.has(name, statement.function) for one in left_out)
                                 for statement in found.statements)
        shares = [f"{100 * counts[rig] / max(counts[''], 1):.0f}" for rig in (*by_rig, "all")]
        rest = f"{100 * counts['all'] / max(counts[''] - counts['out'], 1):.1f}"
        cells = [f"`{room.removeprefix('dledger/')}`", str(counts[""]), *shares, str(counts["out"]), rest]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def never_entered(room: str, lines: Mapping[str, set[int]]) -> list[str]:
    """The functions of a folder of which no statement was executed, with their numbers of statements."""
    found = []
    for path in sorted((ROOT / room).rglob("*.py")):
        here = covered(path, lines.get(str(path), set()))
        sizes = collections.Counter(one.function for one in here.statements)
        name = path.relative_to(ROOT).as_posix()
        entered = here.entered
        found += [f"{name}: {one}, {size}" for one, size in sizes.items() if one not in entered]
    return found


def most_left(room: str, lines: Mapping[str, set[int]]) -> list[tuple[int, int, str]]:
    """
    The functions of a folder or a module, most statements left first.

    @return: for each its number of statements that were not executed, of all, and C{"path: name"}; none of
        those without one left.
    """
    found = []
    root = ROOT / room
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        here = covered(path, lines.get(str(path), set()))
        sizes = collections.Counter(one.function for one in here.statements)
        executed = collections.Counter(one.function for one in here.executed)
        name = path.relative_to(ROOT).as_posix()
        found += [(size - executed[one], size, f"{name}: {one}")
                  for one, size in sizes.items() if size > executed[one]]
    return sorted(found, key=lambda one: (-one[0], one[2]))


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(RIGS)), help="[default: all rigs]")
@click.option("--schedules", default=30, show_default=True, help="Of each rig, after those of its kinds.")
@click.option("--seed", default=1, show_default=True, help="Of the first schedule.")
@click.option("--missing", multiple=True, help="A folder: list its functions that no schedule enters.")
@click.option("--largest", default=0, help="List so many functions, those with most statements not executed.")
@click.option("--room", default="dledger", help="With --largest: a folder, or a module.  [default: all]")
@click.option("--left-out", "wants_left_out", is_flag=True, help="Print only what is left out, and why.")
def main(
    only: tuple[str, ...], schedules: int, seed: int, missing: tuple[str, ...], largest: int, room: str,
    wants_left_out: bool,
) -> None:
    """
    Print which share of the statements of each room the simulators execute.

    The exit status is 1 if something that is left out is executed, or is not there any more.
    """
    from dledger.testing.world.bugs import be_quiet

    left_out = left_out_of(LEFT_OUT.read_text(encoding="utf-8"))
    if wants_left_out:
        click.echo("\n".join(left_out_table(left_out)))
        return
    be_quiet()
    by_rig: dict[str, dict[str, set[int]]] = {}
    every: dict[str, set[int]] = collections.defaultdict(set)
    for rig in only or RIGS:
        began = time.process_time()
        by_rig[rig] = executed_by(rig, range(seed, seed + schedules))
        click.echo(f"{rig}: {time.process_time() - began:.0f} s", err=True)
        for path, lines in by_rig[rig].items():
            every[path] |= lines
    told = table(by_rig, left_out)
    for folder in missing:
        told += never_entered(folder, every)
    told += [f"{left} of {size}: {name}" for left, size, name in most_left(room, every)[:largest]]
    click.echo("\n".join(told))
    wrong = stale(left_out, every)
    click.echo("\n".join(wrong), err=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(prog_name="python -m tests.coverage_of_rigs")
