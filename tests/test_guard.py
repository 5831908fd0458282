# -*- test-case-name: tests.test_guard -*-
"""The hot roads cost as much as before, and the guard would notice if they cost more."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from click.testing import CliRunner
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks import guard
from benchmarks.guard import Cost, Road, complaints, counting, measure, read_baseline, write_baseline
from benchmarks.load import ROOT

_SOURCE = """
def leaf():
    pass

def road(times):
    for _ in range(times):
        leaf()
        len(())
        loads("1")
"""


def sample_road() -> Callable[[int], None]:
    """A function that counts as ours: three calls for each time."""
    names: dict[str, Any] = {"loads": json.loads}
    exec(compile(_SOURCE, f"{ROOT}/dledger/sample.py", "exec"), names)
    road: Callable[[int], None] = names["road"]
    return road


class _SampleRoad(Road):
    """Not a road of the product."""

    window = 1

    def once(self) -> None:
        """One call of the sample with one time."""
        sample_road()(1)


class HotRoadTests(SynchronousTestCase):
    """The product against the baseline."""

    def test_costs(self) -> None:
        """No road costs more than the baseline and a tenth; see docs/hacking.md, "The guard"."""
        baseline = read_baseline()
        if baseline is None:
            raise SkipTest(f"Python {guard.version()} has no baseline: python -m benchmarks.guard --write")
        self.assertEqual(baseline.keys(), guard.ROADS.keys())
        found = complaints({name: measure(name)[0] for name in guard.ROADS}, baseline)
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_repeats(self) -> None:
        """Two runs count the same."""
        costs = [measure("native-1")[0] for _run in range(2)]
        self.assertEqual(costs[0], costs[1])
        self.assertGreater(costs[0].calls, 100)

    def test_roles(self) -> None:
        """The calls of the roles of a lone append are all its calls."""
        cost = measure("native-1")[0]
        self.assertEqual(sum(cost.roles[role] * number for role, number in guard.ROLES.items()), cost.calls)
        self.assertEqual(cost.roles.keys(), guard.ROLES.keys())


class CountingTests(SynchronousTestCase):
    """What is counted."""

    def test_calls(self) -> None:
        """Ours, and those from ours into C and libraries; not the work inside libraries."""
        road = sample_road()
        with counting() as counts:
            road(10)
            json.loads("[1, 2]")
        # Ten times leaf, len and loads, and road itself; a call of a type (range) is no event.
        self.assertEqual(counts.calls.total(), 31)
        self.assertEqual({code.co_name for _role, code in counts.calls}, {"road", "leaf"})
        self.assertEqual({code.co_name for _role, code in counts.steps}, {"road", "leaf"})

    def test_roles(self) -> None:
        """A call counts for the role that makes it."""
        road, roles = sample_road(), ["leader"]
        with counting(lambda: roles[-1]) as counts:
            road(1)
            roles.append("client")
            road(2)
        by_role = Counter({role: 0 for role in guard.ROLES})
        for (role, _code), number in counts.calls.items():
            by_role[role] += number
        self.assertEqual(by_role, {"leader": 4, "follower": 0, "client": 7})

    def test_steps(self) -> None:
        """More work means more steps, by the same number each time."""
        road, totals = sample_road(), []
        for times in (1, 2, 3):
            with counting() as counts:
                road(times)
            totals.append(counts.steps.total())
        self.assertEqual(totals[1] - totals[0], totals[2] - totals[1])
        self.assertGreater(totals[1], totals[0])

    def test_tracers_return(self) -> None:
        """Those of before are there afterwards, also after an exception."""

        def before(*_arguments: object) -> None:
            pass

        self.addCleanup(sys.setprofile, sys.getprofile())
        sys.setprofile(before)
        with self.assertRaises(ValueError), counting():
            raise ValueError
        self.assertIs(sys.getprofile(), before)


class BaselineTests(SynchronousTestCase):
    """Bounds, and the file."""

    accepted = Cost(calls=100.0, steps=1000.0, writes=0.0, wire=10.0)

    def test_bound(self) -> None:
        """A tenth more passes; beyond that, the cost is named with both figures."""
        cheap = attrs.evolve(self.accepted, calls=110.0)
        self.assertEqual(complaints({"a": cheap}, {"a": self.accepted}), [])
        dear = attrs.evolve(self.accepted, calls=111.0, wire=20.0)
        found = complaints({"a": dear}, {"a": self.accepted})
        self.assertEqual([one.split(" for")[0] for one in found], ["a: 111 calls", "a: 20 wire"])
        self.assertIn("+11%; the baseline is 100", found[0])

    def test_roles(self) -> None:
        """The calls of one role have a bound of their own, a twentieth."""
        accepted = attrs.evolve(self.accepted, roles={"leader": 40.0, "client": 20.0})
        dearer = attrs.evolve(accepted, roles={"leader": 42.0})
        self.assertEqual(complaints({"a": dearer}, {"a": accepted}), [])
        (found,) = complaints({"a": attrs.evolve(accepted, roles={"leader": 43.0})}, {"a": accepted})
        self.assertIn("a: 43 calls of the leader for each append, +7%; the baseline is 40, and 5%", found)
        (found,) = complaints({"a": attrs.evolve(accepted, roles={"follower": 1.0})}, {"a": accepted})
        self.assertIn("a: 1 calls of the follower for each append; the baseline is 0", found)

    def test_unknown_road(self) -> None:
        """A new road needs a baseline."""
        (found,) = complaints({"new": self.accepted}, {})
        self.assertIn("new has no baseline", found)

    def test_file(self) -> None:
        """Writing one version keeps the others; a version that is not in the file has none."""
        path = Path(self.mktemp())
        path.write_text(json.dumps({"2.7": {"native-1": {"calls": 1}}}))
        self.assertIsNone(read_baseline(path))
        write_baseline({"native-1": self.accepted}, path)
        self.assertEqual(read_baseline(path), {"native-1": self.accepted})
        self.assertEqual(json.loads(path.read_text())["2.7"], {"native-1": {"calls": 1}})


class CommandTests(SynchronousTestCase):
    """python -m benchmarks.guard, with a road that is none."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp())
        self.patch(guard, "BASELINE", self.path)
        self.patch(guard.read_baseline, "__defaults__", (self.path,))
        self.patch(guard.write_baseline, "__defaults__", (self.path,))
        self.patch(guard, "ROADS", {"sample": _SampleRoad})

    def run_guard(self, *arguments: str) -> tuple[int, str]:
        """Exit status and output, with that of the console."""
        with guard.console.capture() as shown:
            result = CliRunner().invoke(guard.main, arguments)
        return result.exit_code, shown.get() + result.output

    def test_without_baseline(self) -> None:
        """Nothing is compared, and that is said."""
        status, output = self.run_guard()
        self.assertEqual(status, 0)
        self.assertIn("has no baseline, so nothing was compared", output)

    def test_written_and_broken(self) -> None:
        """What was written passes; with a cheaper baseline the status is 1."""
        self.assertEqual(self.run_guard("--write")[0], 0)
        status, output = self.run_guard()
        self.assertEqual(status, 0)
        self.assertIn("(+0.0%)", output)
        document = json.loads(self.path.read_text())
        document[guard.version()]["sample"]["calls"] -= 1
        self.path.write_text(json.dumps(document))
        status, output = self.run_guard()
        self.assertEqual(status, 1)
        self.assertIn("sample: 5 calls for each append, +25%", output)
