# -*- test-case-name: tests.sim.test_history -*-
"""The history checker, against examples and against its dumb twin."""

from __future__ import annotations

import random
from collections.abc import Sequence

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.checks.history import NEVER, Call, History, NotLinearizable, brute_force, check


def append(began: int, ended: int, index: int, body: bytes, outcome: str = "ok") -> Call:
    """An append."""
    return Call("append", began, index, body, ended, outcome)


def get(began: int, ended: int, index: int, body: bytes | None) -> Call:
    """A get that found C{body}, or nothing."""
    return Call("get", began, index, body or b"", ended, "ok" if body is not None else "beyond")


def end(began: int, ended: int, index: int) -> Call:
    """A question for the highest index."""
    return Call("end", began, index, b"", ended, "ok")


def is_change(body: bytes) -> bool:
    """Whether a machine takes note of a body."""
    return not body.startswith(b"-")


def next_in(log: Sequence[bytes], index: int) -> int:
    """The next entry that changes the state of the machine."""
    return next((at for at in range(index + 1, len(log)) if is_change(log[at])), len(log))


class CheckTests(SynchronousTestCase):
    """Single rules."""

    LOG = (b"a", b"b")

    def holds(self, *calls: Call, log: tuple[bytes, ...] = LOG) -> None:
        """The history is fine."""
        check(calls, lambda index: log[index], len(log) - 1)

    def fails(self, *calls: Call, log: tuple[bytes, ...] = LOG) -> str:
        """The sentence with which it is refused."""
        with self.assertRaises(NotLinearizable) as caught:
            self.holds(*calls, log=log)
        return str(caught.exception)

    def test_sequence(self) -> None:
        """Appends and reads, one after the other."""
        self.holds(append(1, 2, 0, b"a"), get(3, 4, 0, b"a"), get(5, 6, 1, None), append(7, 8, 1, b"b"),
                   end(9, 10, 1))

    def test_stale_read(self) -> None:
        """A read that began after an append had ended must see it."""
        self.assertIn("entry 1", self.fails(append(1, 2, 0, b"a"), append(3, 4, 1, b"b"), get(5, 6, 1, None)))

    def test_stale_end(self) -> None:
        """So must a question for the end."""
        self.fails(append(1, 2, 0, b"a"), append(3, 4, 1, b"b"), end(5, 6, 0))

    def test_read_from_the_future(self) -> None:
        """A read that ended before an append began cannot have seen it."""
        self.fails(get(1, 2, 0, b"a"), append(3, 4, 0, b"a"))

    def test_stale_state(self) -> None:
        """A machine that is asked after a command was answered has applied it, if it changes the state."""
        self.fails(append(1, 2, 0, b"a"), append(3, 4, 1, b"b"), Call("state", 5, 0, b"", 6, "ok"))
        check([append(1, 2, 0, b"a"), append(3, 4, 1, b"-b"), Call("state", 5, 0, b"", 6, "ok")],
              lambda index: (b"a", b"-b")[index], 1, next_change=lambda index: next_in((b"a", b"-b"), index))

    def test_overlapping(self) -> None:
        """While an append is under way, both answers are right."""
        self.holds(append(1, 6, 0, b"a"), get(2, 3, 0, None), get(4, 5, 0, b"a"), log=(b"a",))

    def test_new_then_old(self) -> None:
        """But not the new one and then the old one."""
        self.fails(append(1, 6, 0, b"a"), get(2, 3, 0, b"a"), get(4, 5, 0, None), log=(b"a",))

    def test_order_of_appends(self) -> None:
        """An append that began after another had ended is after it."""
        self.fails(append(1, 2, 1, b"b"), append(3, 4, 0, b"a"))

    def test_reading_a_later_entry_shows_the_earlier(self) -> None:
        """Who saw entry 1 cannot miss entry 0 afterwards."""
        self.fails(append(1, 20, 0, b"a"), append(2, 21, 1, b"b"), get(3, 4, 1, b"b"), get(5, 6, 0, None))

    def test_unknown_may_be_there(self) -> None:
        """An append without an answer may be in the log, at any later time, or not."""
        unknown = append(1, NEVER, -1, b"a", "unknown")
        self.holds(unknown, get(5, 6, 0, None), get(7, 8, 0, b"a"), log=(b"a",))
        self.holds(unknown, log=())

    def test_refused_must_not_be_there(self) -> None:
        """An append that was refused is not in the log."""
        self.assertIn("refused", self.fails(append(1, 2, -1, b"a", "failed")))

    def test_lost(self) -> None:
        """An acknowledged append is in the log, at its index."""
        self.assertIn("answered 5", self.fails(append(1, 2, 5, b"a")))
        self.assertIn("at -1", self.fails(append(1, 2, 0, b"z")))

    def test_doubled(self) -> None:
        """A body is in the log once."""
        self.assertIn("0 and 1", self.fails(log=(b"a", b"a")))

    def test_wrong_body(self) -> None:
        """A read shows entries of the log."""
        self.assertIn("another body", self.fails(get(1, 2, 0, b"z")))

    def test_beyond_the_log(self) -> None:
        """A read cannot show entries that the final log lacks."""
        self.assertIn("ends at 1", self.fails(end(1, 2, 7)))


class TwinTests(SynchronousTestCase):
    """The checker and the brute force agree on every small history."""

    def history(self, rng: random.Random) -> tuple[list[Call], list[bytes]]:
        """A few calls at random times whose answers are likely, but not sure, to be right."""
        calls: list[Call] = []
        stamps = rng.sample(range(1, 100), 12)
        log: list[bytes] = []
        for number in range(rng.randint(2, 6)):
            began, ended = sorted(stamps[2 * number : 2 * number + 2])
            kind = rng.choice(("append", "append", "unknown", "get", "end", "state"))
            if kind == "append":
                body = rng.choice((b"%d", b"-%d")) % number  # (the machine ignores the second one)
                calls.append(append(began, ended, len(log), body))
                log.append(body)
            elif kind == "unknown":
                body = b"%d" % number
                calls.append(append(began, NEVER, -1, body, "unknown"))
                if rng.random() < 0.5:
                    log.append(body)
            elif kind == "get":
                index = rng.randrange(3)
                calls.append(Call("get", began, index, b"", ended, "beyond"))
            elif kind == "end":
                calls.append(end(began, ended, rng.randrange(-1, 3)))
            else:
                known = [-1, *(at for at, one in enumerate(log) if is_change(one))]
                calls.append(Call("state", began, rng.choice(known), b"", ended, "ok"))
        for call in calls:
            if call.kind == "get" and call.index < len(log) and rng.random() < 0.6:
                call.outcome, call.body = "ok", log[call.index]
        return calls, log

    def test_agreement(self) -> None:
        """3000 histories, of which a good part is right and a good part is wrong."""
        rng = random.Random(7)
        right = wrong = 0
        for _ in range(3000):
            calls, log = self.history(rng)
            try:
                check(calls, lambda index, log=log: log[index], len(log) - 1,  # type: ignore[misc]
                      next_change=lambda index, log=log: next_in(log, index))  # type: ignore[misc]
                answer = True
            except NotLinearizable:
                answer = False
            due = brute_force(calls + self.final_reads(log), is_change)
            self.assertEqual(answer, due, (calls, log))
            right, wrong = right + answer, wrong + (not answer)
        self.assertGreater(right, 300)
        self.assertGreater(wrong, 300)

    def final_reads(self, log: list[bytes]) -> list[Call]:
        """The final log, as reads after everything else: it is the checker's input."""
        reads = [get(200 + 2 * index, 201 + 2 * index, index, body) for index, body in enumerate(log)]
        return [*reads, end(300, 301, len(log) - 1)]


class HistoryTests(SynchronousTestCase):
    """Stamps are handed out in order."""

    def test_stamps(self) -> None:
        """Begin and end take the next one; an unknown outcome has no end."""
        history = History()
        one = history.begin("append", body=b"a")
        two = history.begin("get", index=0)
        history.end(two, "beyond")
        history.end(one, "unknown")
        self.assertEqual((one.began, two.began, two.ended, one.ended), (1, 2, 3, NEVER))

    def test_a_call_ends_once(self) -> None:
        """A second end is our bug."""
        history = History()
        call = history.begin("get", index=0)
        history.end(call, "beyond")
        self.assertRaises(AssertionError, history.end, call, "ok")
