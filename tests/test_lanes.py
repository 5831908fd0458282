# -*- test-case-name: tests.test_lanes -*-
"""Programs side by side: each is counted once, and its output stays whole."""

from __future__ import annotations

import ast
import io
import re
import sys
import threading
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests import lanes
from tests.lanes import SUITES, Job, Lanes, module_jobs
from tests.runner.counts import SUMMARY, read_total
from tests.runner.stages import modules_of, unit_suites

_SAYING = """
import sys
for line in range(200):
    print("{name}", line, flush=True)
print("{passed} passed, {failed} failed")
sys.exit({failed})
"""


def saying(name: str, passed: int, failed: int) -> Job:
    """A program that prints a count."""
    program = _SAYING.format(name=name, passed=passed, failed=failed)
    return Job(name=name, command=(sys.executable, "-c", program), read=read_total(SUMMARY))


class LanesTests(SynchronousTestCase):
    """Small programs in two lanes."""

    def test_sum(self) -> None:
        """The counts of all jobs are added up; none is left out or counted twice."""
        lanes = Lanes([saying(f"job{number}", number + 1, number % 2) for number in range(5)], io.StringIO())
        count = lanes.run(2)
        self.assertEqual((count.passed, count.failed), (15, 2))
        self.assertEqual(list(sorted(lanes.counts)), [f"job{number}" for number in range(5)])

    def test_output_is_whole(self) -> None:
        """The lines of one program are together."""
        out = io.StringIO()
        Lanes([saying("a", 1, 0), saying("b", 1, 0)], out).run(2)
        lines = [line[0] for line in out.getvalue().splitlines() if re.match(r"[ab] \d+$", line)]
        self.assertEqual(len(lines), 400)
        self.assertEqual(sum(one != two for one, two in zip(lines, lines[1:], strict=False)), 1)

    def test_a_program_that_breaks_has_failed(self) -> None:
        """A program without a count has failed once."""
        command = (sys.executable, "-c", "raise SystemExit(3)")
        broken = Job(name="broken", command=command, read=read_total(SUMMARY))
        count = Lanes([broken, saying("a", 1, 0)], io.StringIO()).run(1)
        self.assertEqual((count.passed, count.failed), (1, 1))

    def test_again(self) -> None:
        """A program that breaks is followed by its command, without what was made for this run."""
        for code, is_broken in (("print('1 passed, 1 failed'); raise SystemExit(1)", False),
                                ("raise SystemExit(3)", True)):
            out = io.StringIO()
            command = (sys.executable, "-c", code, "--temp-directory=gone", "tests.x y")
            Lanes([Job(name="it", command=command, read=read_total(SUMMARY))], out).run(1)
            self.assertEqual("again: python -c" in out.getvalue(), is_broken)
            if is_broken:
                self.assertIn("again: python -c 'raise SystemExit(3)' 'tests.x y'\n", out.getvalue())

    def test_a_reader_that_breaks_has_failed(self) -> None:
        """A job whose output cannot be read has failed once."""
        def unread(_output: str, _status: int) -> object:
            raise ValueError("what is this?")

        job = Job(name="unread", command=(sys.executable, "-c", ""), read=unread)  # type: ignore[arg-type]
        seen: list[object] = []
        self.patch(threading, "excepthook", seen.append)
        count = Lanes([job], io.StringIO()).run(1)
        self.assertEqual((count.passed, count.failed), (0, 1))
        self.assertEqual(len(seen), 1)

    def test_a_program_that_hangs_has_failed(self) -> None:
        """It is ended, its output is shown, and the other jobs run."""
        code = "import time; print('so far', flush=True); time.sleep(60)"
        hanging = Job(name="hanging", command=(sys.executable, "-c", code), read=read_total(SUMMARY))
        out = io.StringIO()
        count = Lanes([hanging, saying("a", 1, 0)], out, limit_s=0.5).run(1)
        self.assertEqual((count.passed, count.failed), (1, 1))
        self.assertIn("so far\n\nhanging was ended after 0 s", out.getvalue())

    def test_progress(self) -> None:
        """The running jobs are reported now and then."""
        reported = Path(self.mktemp())

        class Out(io.StringIO):
            """Lets the program end once it was reported as running."""

            def write(self, text: str) -> int:
                if "slow running" in text:
                    reported.touch()
                return super().write(text)

        code = (
            "import pathlib, time\n"
            f"while not pathlib.Path({str(reported.absolute())!r}).exists(): time.sleep(0.01)\n"
            "print('1 passed, 0 failed')"
        )
        out = Out()
        slow = Job(name="slow", command=(sys.executable, "-c", code), read=read_total(SUMMARY))
        Lanes([slow], out, notify_s=0.001).run(1)
        self.assertIn("slow begins", out.getvalue())
        self.assertIn("slow running", out.getvalue())


class SuitesTests(SynchronousTestCase):
    """The folders of test modules."""

    def test_every_module_is_a_job(self) -> None:
        """The jobs have all test modules of the folder, once each; none is named that is not there."""
        for suite, settings in SUITES.items():
            jobs = module_jobs(suite, Path("x"))
            names = [word.rpartition(".")[2] for job in jobs for word in job.command
                     if word.startswith(f"tests.{suite}.")]
            modules = [path.stem for path in (Path(__file__).parent / suite).glob("test_*.py")]
            self.assertEqual(sorted(names), sorted(modules))
            self.assertEqual(tuple(job.name for job in jobs[: len(settings.longest)]), settings.longest)
            self.assertEqual(len({job.name for job in jobs}), len(jobs))
            self.assertLessEqual(set(settings.alone), set(modules))

    def test_quick(self) -> None:
        """C{make test} has tests of every suite, under the names that they have."""
        for suite, settings in SUITES.items():
            self.assertGreater(len(settings.quick), 0, suite)
            for name in (name for program in settings.quick for name in program):
                module, *inner = name.split(".")
                source = (Path(__file__).parent / suite / f"{module}.py").read_text()
                body: list[ast.stmt] = ast.parse(source).body
                for part in inner:
                    (found,) = [each for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef)
                                and each.name == part]
                    body = found.body

    def test_units(self) -> None:
        """Every unit test is in one program, under the name of its module or package."""
        programs = lanes.unit_programs()
        names = [name for suites in programs.values() for name in suites]
        self.assertEqual(len(set(names)), len(names))
        for suite in unit_suites():
            if suite not in names:
                self.assertLessEqual(set(modules_of(suite)), set(names), suite)
        self.assertEqual(list(programs), list(lanes.UNIT_PROGRAMS))
        self.assertEqual([name for name, suites in programs.items() if not suites], [])
        for program, suites in lanes.UNIT_PROGRAMS.items():
            for suite in suites:
                if suite != "tests.sim":
                    self.assertIn(suite, programs[program])

    def test_new_units(self) -> None:
        """A new module is in the program of its package, a new package in that of the others."""
        root = Path(self.mktemp())
        for name in ("sim/test_pairs", "sim/test_x", "new/test_y", "core/test_z", "test_tidy"):
            path = root / "tests" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            (path.parent / "__init__.py").touch()
        found = {program: suites for program, suites in lanes.unit_programs(root).items() if suites}
        self.assertEqual(found, {
            "groups": ["tests.sim.test_x"], "brokers": ["tests.sim.test_pairs"], "ledger": ["tests.core"],
            "house rules": ["tests.test_tidy"], lanes.UNIT_OTHERS: ["tests.new"],
        })

    def test_alone(self) -> None:
        """Modules that measure run one after the other, and before all others; everything is counted."""
        jobs = [saying(name, 1, int(name == "c")) for name in "abcd"]
        out = io.StringIO()
        self.patch(lanes, "module_jobs", lambda *_: jobs)
        self.patch(lanes.sys, "stdout", out)
        self.patch(lanes, "SUITES", {"it": lanes.Suite(2, (), alone=("b", "d"))})
        count = lanes.run_suite("it", first=[saying("e", 1, 0)])
        self.assertEqual((count.passed, count.failed), (5, 1))
        reported = re.findall(r"^\[ +\d+ s\] (\w) (begins|took)", out.getvalue(), re.MULTILINE)
        self.assertEqual(reported[:4], [("b", "begins"), ("b", "took"), ("d", "begins"), ("d", "took")])
        self.assertEqual({name for name, _ in reported[4:]}, set("ace"))
