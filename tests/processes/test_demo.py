# -*- test-case-name: tests.processes.test_demo -*-
"""The demo ends well, names lost lines, and can be interrupted."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from demo.run import Lost, judge, number_of, record_of, text_lines
from demo.spark_end import expectation, verdict
from tests.processes.asking import metadata_of
from tests.processes.children import wait_until
from tests.processes.members import ROOT, Group
from tests.processes.test_children import is_gone
from tests.processes.test_ledgers import write_ledger


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class DemoTests(SynchronousTestCase):
    """The program."""

    def setUp(self) -> None:
        """An input file."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.input = self.directory / "input"
        self.input.write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run the demo; its output goes to a file, so that tests can read it meanwhile."""
        with open(self.directory / "output", "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "demo.run", *arguments], cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)  # its members die with it
        return process

    def output(self) -> str:
        """The output so far."""
        return (self.directory / "output").read_text()

    def test_nothing_lost(self) -> None:
        """Status 0, a failover time, Spark's counts, and a table of three members."""
        status = self.start("--input", str(self.input)).wait(240)
        output = self.output()
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"Spark: (20,00\d) entries from the members, \1 back from")
        self.assertIn("killed with SIGKILL", output)
        self.assertIn("Nothing lost, nothing doubled: 20,000 lines", output)
        for peer_id in ("n0", "n1", "n2"):
            self.assertRegex(output, rf"{peer_id} +│ 20,000")

    def test_interrupted(self) -> None:
        """Ctrl-C in the middle of the appends ends it and its members, quickly."""
        self.input.write_bytes(b"a line\n" * 1_000_000)
        process = self.start("--input", str(self.input))

        def appends() -> bool:
            self.assertIsNone(process.poll(), self.output())
            members = re.findall(r"(n\d) ([\d.]+:\d+)", self.output())
            found = (metadata_of(*member, group="default", seconds=0.5) for member in members)
            return any(answer is not None and answer.committed_index > 1000 for answer in found)

        wait_until(appends, seconds=60, what="committed lines")
        children = children_of(process.pid)
        members = [child for local in children for child in children_of(local)]
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130, self.output())
        self.assertIn("interrupted", self.output())
        self.assertEqual((len(children), len(members)), (1, 3))
        wait_until(lambda: all(map(is_gone, [*children, *members])), seconds=60, what="all are gone")

    def start_swallowing(self) -> tuple[subprocess.Popen[str], Path]:
        """A demo that only swallows the exception of an interrupt; and the directory of its files."""
        script = (
            "import demo.run as demo\n"
            "def play(directory, bodies, *, with_spark):\n"
            "    try:\n"
            "        print(directory, flush=True)\n"
            "        demo.time.sleep(60)\n"
            "    except KeyboardInterrupt:\n"
            "        demo.time.sleep(60)\n"
            "demo.play = play\n"
            "demo._INTERRUPTED_S = 0.5\n"
            "demo.main(['--no-spark'])\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL, text=True,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        directory = Path(process.stdout.readline().strip())
        self.assertTrue(directory.is_dir())
        return process, directory

    def test_interrupt_that_is_swallowed(self) -> None:
        """In any code that the interrupt meets, the demo ends, and its files are removed."""
        process, directory = self.start_swallowing()
        process.send_signal(signal.SIGINT)
        output, _nothing = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 130, output)
        self.assertIn("interrupted", output)
        self.assertFalse(directory.exists())

    def test_interrupt_that_nobody_hears_of(self) -> None:
        """The demo also ends if its output can no longer be written."""
        process, directory = self.start_swallowing()
        assert process.stdout is not None
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(30), 130)
        self.assertFalse(directory.exists())

    def test_too_little(self) -> None:
        """An input without lines is refused."""
        self.input.write_bytes(b"")
        self.assertEqual(self.start("--input", str(self.input)).wait(30), 1)
        self.assertIn("two lines", self.output())


class JudgeTests(SynchronousTestCase):
    """The judge notices a line that is lost, doubled or out of order."""

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
        """A line is in the log twice."""
        log = self.bodies[:5] + self.bodies[4:]
        self.assertRaises(Lost, self.judge, log, log, log)

    def test_out_of_order(self) -> None:
        """Two lines are swapped."""
        log = [*self.bodies[:3], self.bodies[4], self.bodies[3], *self.bodies[5:]]
        self.assertRaises(Lost, self.judge, log, log, log)

    def test_one_member_differs(self) -> None:
        """One member lacks the mark."""
        log = [*self.bodies, b"mark"]
        self.assertRaises(Lost, self.judge, log, log, [*self.bodies, b"MARK"])

    def test_spark(self) -> None:
        """Each of Spark's counts, from both places, is compared with the acknowledged lines."""
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
        """Only text is read; a line keeps its bytes, with any line end."""
        with tempfile.TemporaryDirectory() as name:
            text, image = Path(name) / "text", Path(name) / "image"
            text.write_bytes("Grüße\r\n\r\n\ttab\n".encode())
            image.write_bytes(b"\x89PNG\0\n")
            self.assertEqual(list(text_lines([image, text])), ["Grüße".encode(), b"", b"\ttab"])

    def test_numbers(self) -> None:
        """A line that looks like a mark is still a line."""
        self.assertEqual(number_of(record_of(7, b"mark")), 7)
        self.assertEqual([number_of(body) for body in (b"", b"mark")], [None, None])
