# -*- test-case-name: tests.processes.test_demo -*-
"""The demo ends well, says what is lost when something is, and lets itself be interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from demo.run import Lost, judge, number_of, record_of, text_lines
from demo.spark_end import expectation, verdict
from tests.processes.members import ROOT, Group
from tests.processes.test_children import is_gone
from tests.processes.test_ledgers import write_ledger


class DemoTests(SynchronousTestCase):
    """The program."""

    def setUp(self) -> None:
        """An input file."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.input = self.directory / "input"
        self.input.write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Run it."""
        return subprocess.Popen(
            [sys.executable, "-m", "demo.run", *arguments], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )

    def test_nothing_lost(self) -> None:
        """Status 0, a failover time, what Spark has found, and a table of three members."""
        with self.start("--input", str(self.input)) as process:
            output, _nothing = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 0, output)
        self.assertRegex(output, r"Spark: (20,00\d) entries from the members, \1 back from")
        self.assertIn("killed with SIGKILL", output)
        self.assertIn("Nothing lost, nothing doubled: 20,000 lines", output)
        for peer_id in ("n0", "n1", "n2"):
            self.assertRegex(output, rf"{peer_id} +│ 20,000")

    def test_interrupted(self) -> None:
        """Ctrl-C ends it and its members, quickly."""
        self.input.write_bytes(b"a line\n" * 1_000_000)
        with self.start("--input", str(self.input)) as process:
            time.sleep(4)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.send_signal(signal.SIGINT)
            output, _nothing = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, output)
        self.assertIn("interrupted", output)
        self.assertEqual(len(children), 3)
        self.assertTrue(all(is_gone(int(child)) for child in children))

    def test_interrupt_that_is_swallowed(self) -> None:
        """Whatever code the interrupt meets, the demo ends, and its files are gone."""
        script = (
            "import demo.run as demo\n"
            "def play(directory, bodies, *, with_spark):\n"
            "    print(directory, flush=True)\n"
            "    while True:\n"
            "        try:\n"
            "            demo.time.sleep(60)\n"
            "        except KeyboardInterrupt:\n"
            "            pass\n"
            "demo.play = play\n"
            "demo.main(['--no-spark'])\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            directory = Path(process.stdout.readline().strip())
            self.assertTrue(directory.is_dir())
            process.send_signal(signal.SIGINT)
            output, _nothing = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, output)
        self.assertIn("interrupted", output)
        self.assertFalse(directory.exists())

    def test_too_little(self) -> None:
        """An input without lines is refused."""
        self.input.write_bytes(b"")
        with self.start("--input", str(self.input)) as process:
            output, _nothing = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1)
        self.assertIn("two lines", output)


class JudgeTests(SynchronousTestCase):
    """What the judge would say of a log that lost something."""

    def setUp(self) -> None:
        """Three directories."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.group = Group(Path(held.name))
        self.bodies = [record_of(number, b"line") for number in range(10)]

    def judge(self, *logs: list[bytes]) -> None:
        """Write these as the members' files, and judge them."""
        for member, log in zip(self.group.members.values(), logs, strict=True):
            write_ledger(member.ledger_path, log)
        judge(self.group, self.bodies, len(logs[0]) - 1)

    def test_good(self) -> None:
        """Marks and empty entries are no lines."""
        log = [b"", *self.bodies[:5], b"mark", *self.bodies[5:]]
        self.judge(log, log, log)

    def test_lost(self) -> None:
        """A line is missing everywhere."""
        log = self.bodies[:5] + self.bodies[6:]
        self.assertRaises(Lost, self.judge, log, log, log)

    def test_end_lost(self) -> None:
        """The last line is missing everywhere."""
        self.assertRaises(Lost, self.judge, *[self.bodies[:-1]] * 3)

    def test_doubled(self) -> None:
        """A line stands twice."""
        log = self.bodies[:5] + self.bodies[4:]
        self.assertRaises(Lost, self.judge, log, log, log)

    def test_out_of_order(self) -> None:
        """Two lines the other way round."""
        log = [*self.bodies[:3], self.bodies[4], self.bodies[3], *self.bodies[5:]]
        self.assertRaises(Lost, self.judge, log, log, log)

    def test_one_member_differs(self) -> None:
        """One member lacks the mark."""
        log = [*self.bodies, b"mark"]
        self.assertRaises(Lost, self.judge, log, log, [*self.bodies, b"MARK"])

    def test_spark(self) -> None:
        """What Spark finds is held against what was acknowledged, each number of it, from both places."""
        expected = expectation(self.bodies, 12)
        self.assertEqual((expected["entries"], expected["lines"], expected["last_line"]), (12, 10, 9))
        self.assertEqual(verdict(expected, {"members": dict(expected), "parquet": dict(expected)}), [])
        for where in ("members", "parquet"):
            for name in expected:
                said = {"members": dict(expected), "parquet": dict(expected)}
                said[where][name] += 1
                wrong = verdict(expected, said)
                self.assertEqual(len(wrong), 1)
                self.assertIn(f"Spark, {where}: {name} is ", wrong[0])

    def test_lines(self) -> None:
        """Text only; a line keeps what is in it, whatever its end is."""
        with tempfile.TemporaryDirectory() as name:
            text, image = Path(name) / "text", Path(name) / "image"
            text.write_bytes("Grüße\r\n\r\n\ttab\n".encode())
            image.write_bytes(b"\x89PNG\0\n")
            self.assertEqual(list(text_lines([image, text])), ["Grüße".encode(), b"", b"\ttab"])

    def test_numbers(self) -> None:
        """A line that looks like a mark is still a line."""
        self.assertEqual(number_of(record_of(7, b"mark")), 7)
        self.assertEqual([number_of(body) for body in (b"", b"mark")], [None, None])
