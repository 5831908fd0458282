# -*- test-case-name: tests.hostile.test_soak -*-
"""A short soak, and its judge."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger import Entry
from dledger.testing.group.checks.history import NEVER, Call
from tests.processes.members import ROOT
from tests.slowness import patient
from tests.soak.judge import (
    Line,
    calls_of,
    judged,
    lines_of_workers,
    summary,
    wrong_numbers,
    wrong_reads,
    wrong_states,
)
from tests.soak.machine import Digests, states_of
from tests.soak.porcupine import lines_of
from tests.soak.shim import SIZE, Shim
from tests.soak.worker import numbered_body


class SoakTests(SynchronousTestCase):
    """C{make soak}, for seconds."""

    def test_short(self) -> None:
        """A dozen faults on three members: all answers to clients fit one log, and nobody ended."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.soak.run", "--minutes", "0.35", "--seed", "11", "--clients", "2",
             "--hold", "0.2", "0.8"],
            cwd=ROOT, capture_output=True, text=True, timeout=patient(300),
        )
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertIn("all is well", done.stdout)
        self.assertGreater(done.stdout.count("in step after"), 4, done.stdout)
        self.assertRegex(done.stdout, "commit ok.* read entries")


class JudgeTests(SynchronousTestCase):
    """The files of the workers become a history."""

    def test_calls(self) -> None:
        """Times become stamps, at one of which only calls overlap; a cut line is left out."""
        path = Path(self.mktemp())
        lines = [["append", 10, 20, "ok", 0, "a"], ["append", 20, 30, "unknown", -1, "b"],
                 ["get", 30, 40, "beyond", 1, ""]]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '["get", 1')
        lines = lines_of_workers([path])
        first, second, third = calls_of(lines)
        self.assertEqual((first.began, first.ended, first.index, first.body), (20, 41, 0, b"a"))
        self.assertLess(second.began, first.ended)
        self.assertEqual((second.ended, third.outcome), (NEVER, "beyond"))
        self.assertEqual(summary(lines), "1 append ok, 1 append unknown, 1 get beyond")

    def test_wrong(self) -> None:
        """An acknowledged append that is not in the log is found."""
        path = Path(self.mktemp())
        path.write_text(json.dumps(["append", 10, 20, "ok", 0, "a"]) + "\n")
        ledger = Path(self.mktemp())
        for kind in ("data", "index"):
            (ledger / kind).mkdir(parents=True)
        (wrong, *_rest) = judged(lines_of_workers([path]), [ledger])
        self.assertIn("not linearizable", wrong)

    def test_numbers(self) -> None:
        """A number twice, or left out, is found; what others append between does not count."""
        zero, one, two = (numbered_body("p0", number) for number in range(3))
        self.assertEqual([*wrong_numbers([zero, "w0:1:", one, "p1:7:", two], ["p0"])], [])
        for bodies, after in (([zero, one, one], 1), ([zero, two], 0), ([one], -1)):
            (wrong,) = wrong_numbers(bodies, ["p0"])
            self.assertIn(f"after number {after} comes", wrong)

    def test_reads(self) -> None:
        """An entry that is left out, given after its commit, given twice, or another one, is found."""
        programs = {2: "a", 3: "b", 5: "c", 6: "d"}

        def read(session: str, at: int, index: int, body: str = "") -> Line:
            return Line("r0", "read", at, at + 1, session, index, body or programs[index])

        def commit(outcome: str, at: int, index: int) -> Line:
            return Line("r1", "commit", at, at + 1, outcome, index, "")

        whole = [
            read("s", 1, 2), read("s", 3, 3), commit("unknown", 5, 3), commit("ok", 5, 3), read("t", 7, 5),
        ]
        self.assertEqual([*wrong_reads(whole, programs)], [])
        self.assertEqual([*wrong_reads([*whole[:3], read("t", 7, 2), read("u", 9, 5)], programs)], [])
        for lines, words in (
            ([read("s", 1, 3)], "began with number 1; committed was -1, perhaps -1"),
            ([*whole[:4], read("t", 7, 3)], "began with number 1; committed was 1, perhaps 1"),
            ([*whole, read("t", 9, 5)], "does not follow"),
            ([read("s", 1, 2, "x")], "was given 'x'"),
            ([read("s", 1, 4, "x")], "was given 'x'"),
        ):
            (wrong,) = wrong_reads(lines, programs)
            self.assertIn(words, wrong)

    def test_states(self) -> None:
        """An answer of a machine that is not the log's is found: an entry left out, twice, or another one."""
        programs = {2: "a", 3: "b", 5: "c"}
        states = {index: state.decode() for index, state in states_of({at: b"abc"[n : n + 1] for n, at in
                                                                       enumerate(programs)})}

        def answer(index: int, state: str) -> Line:
            return Line("m0", "state", 1, 2, "ok", index, state)

        whole = [answer(-1, "-1:begin"), *(answer(index, state) for index, state in states.items())]
        self.assertEqual([*wrong_states(whole, programs)], [])
        for index, state in ((3, states[5]), (4, states[5]), (5, states[3])):
            (wrong,) = wrong_states([answer(index, state)], programs)
            self.assertIn(f"after the entry {index} the machine has", wrong)
        machine = Digests()
        entries = [Entry(index=index, term=1, pos=0, body=body.encode()) for index, body in programs.items()]
        self.assertEqual([one.decode() for one in machine.apply(entries)], [*states.values()])
        other = Digests()
        other.restore(machine.snapshot())
        self.assertEqual(other.query(b""), machine.query(b""))

    def test_for_porcupine(self) -> None:
        """Positions without what leaders wrote; no call without an effect that could be judged."""
        calls = [
            Call("append", 2, 1, b"a", ended=5, outcome="ok", client="w0"),
            Call("append", 4, -1, b"b", client="w1"), Call("append", 6, -1, b"lost", client="w1"),
            Call("append", 8, -1, b"no", ended=9, outcome="failed", client="w1"),
            Call("get", 10, 3, b"b", ended=13, outcome="ok", client="w0"),
            Call("get", 14, 0, b"", ended=15, outcome="ok", client="w0"),
            Call("get", 16, 2, ended=17, outcome="beyond", client="w0"),
            Call("get", 18, 9, ended=19, outcome="beyond", client="w0"),
        ]
        self.assertEqual(list(lines_of(calls, [b"", b"a", b"system", b"b"])), [
            "0 append 0 2 5", "1 append 1 4 20", "0 get 1 10 13", "0 beyond 1 16 17", "0 beyond 2 18 19",
        ])

    def test_shim(self) -> None:
        """What is armed is in the file that the library maps, and gone when it is disarmed."""
        path = Path(self.mktemp())
        shim = Shim(Path("lib"), path, Path("ledger"))
        shim.arm(read_errno=5, bad=(Path("/x/y"), 4096, 8192), clock_s=-7)
        self.assertTrue(shim.has_bad_block)
        content = path.read_bytes()
        self.assertEqual(struct.unpack_from("=3q", content, 32), (4096, 8192, -7))
        with open(path, "r+b") as file:  # as the library does when the block has been written
            file.seek(40)
            file.write(bytes(8))
        self.assertFalse(shim.has_bad_block)
        self.assertEqual((len(content), content[:8]), (SIZE, b"\x01\0\0\0\x05\0\0\0"))
        self.assertIn(b"/x/y\0", content)
        shim.disarm()
        self.assertFalse(shim.has_bad_block)
        self.assertEqual(path.read_bytes()[:4], bytes(4))
