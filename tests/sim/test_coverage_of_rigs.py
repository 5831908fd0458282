# -*- test-case-name: tests.sim.test_coverage_of_rigs -*-
"""Which statements count, and which count as executed."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.focuses import FOCUSES
from tests.coverage_of_rigs import (
    KINDS,
    LEFT_OUT,
    RIGS,
    ROOMS,
    ROOT,
    LeftOut,
    LineCounter,
    Statement,
    covered,
    executed_by,
    left_out_of,
    left_out_table,
    most_left,
    never_entered,
    room_of,
    stale,
    statements_of,
    table,
)

SOURCE = '''"""A module."""
LIMIT = 7

class Queue:
    """A docstring."""
    size: int = 3

    def take(
        self, count: int,
    ) -> int:
        """Another."""
        left: int
        if (count
                > LIMIT):
            return max(
                1,
                2,
            )
        elif count == 0:
            return 0
        for _ in range(count):
            left = 1
        else:
            left = 2
        try:
            left //= count - 1
        except ZeroDivisionError:
            left = 3
        finally:
            left += 1
        with open("/dev/null"): left += 1
        match count:
            case 1:
                left += 1
            case _:
                left += 2

        def inner() -> int:
            return left
        return left

def other() -> None:
    pass
'''
#: Begin, end, and the arguments with which a statement is executed.
WANTED = {
    (13, 14): {8, 0, 1, 2}, (15, 18): {8}, (19, 19): {0, 1, 2}, (20, 20): {0}, (21, 21): {1, 2},
    (22, 22): {1, 2}, (24, 24): {1, 2}, (25, 25): {1, 2}, (26, 26): {1, 2}, (28, 28): {1}, (30, 30): {1, 2},
    (31, 31): {1, 2}, (32, 32): {1, 2}, (34, 34): {1}, (36, 36): {2}, (38, 38): {1, 2}, (39, 39): set(),
    (40, 40): {1, 2}, (43, 43): set(),
}


class CountingTests(SynchronousTestCase):
    """A module whose statements are of all kinds."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp()).resolve()
        self.path.write_text(SOURCE)

    def executed(self, *arguments: int) -> set[tuple[int, int]]:
        """Begins and ends of the statements that run with these arguments."""
        counter = LineCounter(lambda name: name == str(self.path))
        space: dict[str, object] = {}
        with counter.counting():
            exec(compile(SOURCE, str(self.path), "exec"), space)
            for argument in arguments:
                space["Queue"]().take(argument)  # type: ignore[operator]
        self.assertEqual(list(counter.lines), [str(self.path)])
        return {(one.begin, one.end) for one in covered(self.path, counter.lines[str(self.path)]).executed}

    def test_statements(self) -> None:
        """Those in functions: neither texts, nor declarations, nor what an import runs."""
        found = statements_of(SOURCE)
        self.assertEqual({(one.begin, one.end) for one in found}, WANTED.keys())
        self.assertEqual(len(found), len(WANTED) + 1)  # two of them on line 31
        names = {one.begin: one.function for one in found}
        self.assertEqual((names[13], names[39], names[43]), ("Queue.take", "Queue.take.inner", "other"))

    def test_executed(self) -> None:
        """Each argument executes its own; all together their union, however often a function is called."""
        for argument in (8, 0, 1, 2):
            self.assertEqual(self.executed(argument), {one for one, by in WANTED.items() if argument in by})
        self.assertEqual(self.executed(8, 8, 0, 1, 1, 2), {one for one, by in WANTED.items() if by})

    def test_counters(self) -> None:
        """Each notes its own lines, also those that an earlier one has seen."""
        space: dict[str, object] = {}
        exec(compile(SOURCE, str(self.path), "exec"), space)
        for _ in range(2):
            counter = LineCounter(lambda name: name == str(self.path))
            with counter.counting():
                space["other"]()  # type: ignore[operator]
            self.assertIn(43, counter.lines[str(self.path)])

    def test_tracer_of_before(self) -> None:
        """What traced before goes on after it."""
        if hasattr(sys, "monitoring"):
            return
        before = sys.gettrace()
        with LineCounter(lambda name: True).counting():
            self.assertIsNot(sys.gettrace(), before)
        self.assertIs(sys.gettrace(), before)


class TableTests(SynchronousTestCase):
    """Of rooms."""

    def test_rooms(self) -> None:
        """They are folders; a module counts in the first one that has it."""
        for room in ROOMS:
            self.assertTrue((ROOT / room).is_dir(), room)
        self.assertEqual(room_of(ROOT / "dledger/rocketmq/broker/ha/acks.py"), "dledger/rocketmq/broker/ha")
        self.assertEqual(room_of(ROOT / "dledger/rocketmq/broker/parts.py"), "dledger/rocketmq/broker")
        self.assertEqual(room_of(ROOT / "dledger/values/quorum.py"), "")

    def test_shares(self) -> None:
        """Percent of each rig, and of all together."""
        path = ROOT / "dledger/raft_broker/stamps.py"
        statements = statements_of(path.read_text())
        half = {one.begin for one in statements[: len(statements) // 2]}
        rest = {one.begin for one in statements} - half
        left_out = [LeftOut("dledger/raft_broker/service.py", "", "why")]
        rows = table({"one": {str(path): half}, "two": {str(path): rest}, "three": {}}, left_out)
        row = next(row for row in rows if "`raft_broker`" in row)
        count, one, two, three, every, out = (int(cell) for cell in row.split("|")[2:-2])
        self.assertEqual(out, len(statements_of((ROOT / left_out[0].path).read_text())))
        share = 100 * len(statements) / (count - out)
        self.assertApproximates(float(row.split("|")[-2]), share, 0.1)
        self.assertEqual(three, 0)
        self.assertLess(abs(every - 100 * len(statements) / count), 1)
        self.assertLess(abs(one + two - every), 2)
        functions = {statement.function for statement in statements}
        left = never_entered("dledger/raft_broker", {str(path): half | rest})
        self.assertFalse([line for line in left if "/stamps.py" in line])
        left = never_entered("dledger/raft_broker", {})
        self.assertEqual(len([line for line in left if "/stamps.py" in line]), len(functions))

    def test_most_statements_left_first(self) -> None:
        """Functions by the number of statements that were not executed; none without one."""
        path = ROOT / "dledger/raft_broker/stamps.py"
        statements = statements_of(path.read_text())
        first = statements[0].function
        lines = {str(path): {one.begin for one in statements if one.function == first}}
        left = most_left("dledger/raft_broker/stamps.py", lines)
        self.assertEqual({name for _, _, name in left},
                         {f"dledger/raft_broker/stamps.py: {one.function}" for one in statements} - {
                             f"dledger/raft_broker/stamps.py: {first}"})
        self.assertEqual([count for count, _, _ in left], sorted((one for one, _, _ in left), reverse=True))
        self.assertLess(len(most_left("dledger/raft_broker", {})[:3]), 4)

    def test_kinds_play_before_the_seeds(self) -> None:
        """Each once; every focus of the group rig is one of its kinds."""
        played: list[object] = []
        with mock.patch.dict(RIGS, {"made up": played.append}), \
                mock.patch.dict(KINDS, {"made up": lambda: [lambda: played.append("kind")]}):
            executed_by("made up", range(3, 5))
        self.assertEqual(played, ["kind", 3, 4])
        self.assertGreater(len(KINDS["group"]()), len(FOCUSES))

    def test_rig(self) -> None:
        """The lines of a schedule."""
        def play(seed: int) -> None:
            assert seed == 3
            room_of(ROOT / "dledger")

        with mock.patch.dict(RIGS, {"made up": play}):
            self.assertEqual(executed_by("made up", range(3, 4)), {})
            self.assertEqual(Statement("f", 1, 2).end, 2)


class LeftOutTests(SynchronousTestCase):
    """The list of what no schedule enters."""

    def test_lines_of_the_list(self) -> None:
        """A module, a class or a function, and a reason; anything else is an error."""
        found = left_out_of("# text\n\na/b.py -- why -- not\na/b.py: One.two -- never\n")
        self.assertEqual(found, [LeftOut("a/b.py", "", "why -- not"), LeftOut("a/b.py", "One.two", "never")])
        for line in ("a/b.py", "a/b.py -- ", "a/b -- why", "a/b.py: c-- why"):
            self.assertRaises(ValueError, left_out_of, line)
        self.assertTrue(found[1].has("a/b.py", "One.two.inner") and found[0].has("a/b.py", "any"))
        self.assertFalse(found[1].has("a/b.py", "One.twofold") or found[1].has("a/c.py", "One.two"))

    def test_a_folder_stays_out(self) -> None:
        """All modules of it; it is stale as soon as a function of one is executed."""
        (one,) = left_out_of("dledger/raft_broker/ -- why\n")
        path = "dledger/raft_broker/stamps.py"
        self.assertTrue(one.has(path, "any"))
        self.assertFalse(one.has("dledger/raft_brokers/stamps.py", "any"))
        self.assertRaises(ValueError, left_out_of, "dledger/raft_broker/: One -- why")
        self.assertEqual(stale([one], {}), [])
        first = statements_of((ROOT / path).read_text())[0]
        (told,) = stale([one], {str(ROOT / path): {first.begin}})
        self.assertTrue(told.endswith(f"{first.function} is executed"), told)
        (row,) = left_out_table([one])[2:]
        self.assertGreater(int(row.split(" | ")[1]), 400)

    def test_stale_lines_are_errors(self) -> None:
        """What is executed, and what is not there any more."""
        path = "dledger/raft_broker/stamps.py"
        first = statements_of((ROOT / path).read_text())[0]
        listed = [LeftOut(path, "", "r"), LeftOut(path, first.function, "r"), LeftOut(path, "gone", "r"),
                  LeftOut("dledger/gone.py", "", "r")]
        self.assertEqual(len(stale(listed, {})), 2)
        told = stale(listed, {str(ROOT / path): {first.begin}})
        self.assertEqual([one.rpartition(", but ")[2] for one in told], [
            f"{first.function} is executed", f"{first.function} is executed", "is not there", "is not there"])

    def test_list_names_what_is_there(self) -> None:
        """Each line of the real one is a part of a module, and a row of the table."""
        listed = left_out_of(LEFT_OUT.read_text())
        self.assertEqual(stale(listed, {}), [])
        self.assertEqual(len(left_out_table(listed)), len(listed) + 2)
        self.assertEqual(len({(one.path, one.name) for one in listed}), len(listed))
