# -*- test-case-name: tests.processes.test_histories -*-
"""Each check of a history fails on its own kind of error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import attrs
from twisted.trial.unittest import SynchronousTestCase

from tests.processes.histories import History, check_history
from tests.processes.writer import Attempt, body_of, name_of, parse_line

SIZE = 50


def attempt(writer: int, sequence: int, index: int, *, outcome: str = "ok", at_ms: float = 0.0) -> Attempt:
    """One append that took a millisecond."""
    return Attempt(
        writer=writer, sequence=sequence, outcome=outcome, index=index, sent_ms=at_ms, done_ms=at_ms + 1
    )


class CheckTests(SynchronousTestCase):
    """A good history, and every way to spoil it."""

    def setUp(self) -> None:
        """Two writers, three appends each, a term-start entry."""
        self.history = [
            attempt(0, 0, 0, at_ms=0), attempt(1, 0, 1, at_ms=2), attempt(0, 1, 3, at_ms=4),
            attempt(1, 1, 4, at_ms=6), attempt(0, 2, -1, outcome="unknown", at_ms=8),
            attempt(1, 2, -1, outcome="failed", at_ms=10), attempt(0, 3, 5, at_ms=12),
        ]
        self.log = {0: body_of(0, 0, SIZE), 1: body_of(1, 0, SIZE), 2: b"", 3: body_of(0, 1, SIZE),
                    4: body_of(1, 1, SIZE), 5: body_of(0, 3, SIZE)}

    def wrong(self) -> str:
        """The kind of the first error."""
        found = check_history(self.history, self.log, body_bytes=SIZE)
        self.assertTrue(found)
        return found[0].partition(":")[0]

    def test_good(self) -> None:
        """Nothing is wrong; an unknown append may be in the log or not."""
        self.assertEqual(check_history(self.history, self.log, body_bytes=SIZE), [])
        self.log[6] = body_of(0, 2, SIZE)
        self.assertEqual(check_history(self.history, self.log, body_bytes=SIZE), [])

    def test_lost(self) -> None:
        """An acknowledged append that is missing."""
        del self.log[4]
        self.assertEqual(self.wrong(), "LOST")

    def test_another_body(self) -> None:
        """An acknowledged append whose index has another body."""
        self.log[4] = body_of(0, 2, SIZE)
        self.assertEqual(self.wrong(), "LOST")

    def test_cut_body(self) -> None:
        """A body that is not whole."""
        self.log[4] = self.log[4][:-1]
        self.assertEqual(self.wrong(), "LOST")

    def test_doubled(self) -> None:
        """A body that is in the log twice, even without an acknowledgement."""
        self.log[6] = self.log[7] = body_of(0, 2, SIZE)
        self.assertEqual(self.wrong(), "DOUBLED")

    def test_false_failure(self) -> None:
        """A body in the log whose append was reported as failed."""
        self.log[6] = body_of(1, 2, SIZE)
        self.assertEqual(self.wrong(), "FALSE FAILURE")

    def test_foreign(self) -> None:
        """A body that no client appended."""
        self.log[6] = body_of(7, 0, SIZE)
        self.assertEqual(self.wrong(), "FOREIGN")

    def test_reordered(self) -> None:
        """Two appends of one writer, both under way at once, in the wrong order."""
        self.history[2] = attrs.evolve(self.history[2], index=5, sent_ms=0.0, done_ms=99.0)
        self.history[6] = attrs.evolve(self.history[6], index=3, sent_ms=0.0, done_ms=99.0)
        self.log[3], self.log[5] = self.log[5], self.log[3]
        self.assertEqual(self.wrong(), "REORDERED")

    def test_back_in_time(self) -> None:
        """An append that was called after another was acknowledged, but is before it."""
        self.history[1] = attrs.evolve(self.history[1], index=3)
        self.history[2] = attrs.evolve(self.history[2], index=1)
        self.log[1], self.log[3] = self.log[3], self.log[1]
        self.assertEqual(self.wrong(), "BACK IN TIME")


class HistoryFileTests(SynchronousTestCase):
    """A history file that is being written."""

    def test_read_on(self) -> None:
        """Only whole lines are read, each once; the rest when it is complete."""
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "history"
            history = History(path)
            self.assertEqual(history.read_on(), [])
            path.write_text("0 0 ok 5 1.0 2.0\n0 1 unkn")
            self.assertEqual([seen.sequence for seen in history.read_on()], [0])
            with open(path, "a") as file:
                file.write("own -1 3.0 4.0\n")
            self.assertEqual([seen.outcome for seen in history.read_on()], ["unknown"])
            self.assertEqual(len(history.outcomes), 2)

    def test_first_ok_after(self) -> None:
        """An append that was called before the moment does not count."""
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "history"
            path.write_text(
                "0 0 ok 0 1.0 2.0\n0 1 ok 1 9.0 21.0\n0 2 failed -1 11.0 22.0\n"
                "0 3 ok 3 13.0 24.0\n0 4 ok 2 12.0 23.0\n"
            )
            found = History(path).first_ok_after(10.0)
            assert found is not None
            self.assertEqual(found.sequence, 4)
            self.assertIsNone(History(path).first_ok_after(100.0))

    def test_bodies(self) -> None:
        """A body names its writer, and no two bodies are equal."""
        bodies = {body_of(writer, sequence, SIZE) for writer in range(3) for sequence in range(50)}
        self.assertEqual(len(bodies), 150)
        self.assertEqual({len(body) for body in bodies}, {SIZE})
        self.assertEqual(name_of(body_of(2, 17, SIZE)), (2, 17))
        self.assertEqual(parse_line("2 17 ok 5 1.5 2.5"), Attempt(
            writer=2, sequence=17, outcome="ok", index=5, sent_ms=1.5, done_ms=2.5
        ))
