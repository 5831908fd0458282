# -*- test-case-name: tests.sim.test_history -*-
"""
The calls and answers of clients, and whether one log could have given these answers.

The model: a log to which appends are added at its end, and which reads look into. A history is
linearizable if every call can be given one instant between its beginning and its end so that the
calls, in that order, behave as on the model. A call without an answer may have its instant at any
later time, or never.

The final log is known, and every body is unique, so no search is needed: entry i was added at some
instant c(i), and c(i) <= c(i+1). Each call bounds some c(i):

  - an append that got index i began before c(i) and ended after it;
  - a read that found entry i ended after c(i); one that found the log shorter began before c(i).

Going up in i, let C{lowest} be the highest lower bound so far. The history is linearizable exactly if
C{lowest} never exceeds the upper bound of c(i). L{brute_force} tries every order instead; a test compares
the two.

Instants are stamps of one counter: no two are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

NEVER = 1 << 62
#: Configuration and producer entries begin with these; a leader may write the same one again.
_OF_LEADERS = (
    b"DLCF\0\0\0", b"SESS\0\1", b"MCHN\0\0\0", b"RDNM\0\0\0", b"TIME\0\0\0", b"AGES\0\0\0",
)
#: Kinds of calls that report the last of some entries, and so that there is none after it.
_LAST = ("end", "state")


@attrs.define
class Call:
    """
    One call of a client.

    @ivar kind: C{append}, C{get} (index wanted), C{end} (highest index) or C{state} (of a state machine: the
        highest index that has changed it).
    @ivar began, ended: stamps; C{ended} is L{NEVER} without an answer.
    @ivar outcome: C{ok}, C{failed} (certainly not done), C{unknown}, for a get also C{beyond}.
    @ivar index: wanted, or returned; -1: none.
    @ivar body: appended, or read.
    """

    kind: str
    began: int
    index: int = -1
    body: bytes = b""
    ended: int = NEVER
    outcome: str = "unknown"
    client: str = ""


class NotLinearizable(AssertionError):
    """No log could have given these answers."""


@attrs.define
class History:
    """
    Calls in the order in which they began.

    @ivar era: number of times that acknowledged entries may have been lost.
    """

    calls: list[Call] = attrs.Factory(list)
    era: int = 0
    _stamp: int = 0
    _forgotten: int = 0

    def begin(self, kind: str, *, client: str = "", index: int = -1, body: bytes = b"") -> Call:
        """Record the beginning of a call."""
        self._stamp += 1
        call = Call(kind, self._stamp, index, body, client=client)
        self.calls.append(call)
        return call

    def forget(self) -> None:
        """
        Entries may be lost: whether a call that has begun was done is not known, and no read binds, even if
        its answer comes later.
        """
        self.era += 1
        self._forgotten = self._stamp
        for call in self.calls:
            self._void(call)

    @staticmethod
    def _void(call: Call) -> None:
        if call.kind == "append" and call.outcome == "ok":
            call.outcome = "unknown"
            call.ended = NEVER
            call.index = -1
        elif call.kind != "append" and call.ended != NEVER:
            call.outcome = "failed"

    def end(self, call: Call, outcome: str, *, index: int | None = None, body: bytes | None = None) -> None:
        """Record the answer to a call."""
        assert call.ended == NEVER, "a call ends once"
        self._stamp += 1
        call.outcome = outcome
        if outcome != "unknown":
            call.ended = self._stamp
        if index is not None:
            call.index = index
        if body is not None:
            call.body = body
        if call.began <= self._forgotten:
            self._void(call)


def check(
    calls: Sequence[Call], body_of: Callable[[int], bytes], end_index: int, *,
    next_change: Callable[[int], int] | None = None,
) -> None:
    """
    @param body_of: body of the entry of the final log at an index, 0 to C{end_index}.
    @param next_change: the next entry after an index that changes the state of the machine; None: each does.
    @raise NotLinearizable: the message says why.
    """
    size = end_index + 1
    lower, upper = [0] * size, [NEVER] * size
    _bound_by_appends(calls, body_of, lower, upper)
    _bound_by_reads(calls, body_of, lower, upper, next_change or _next)
    lowest = 0
    for index in range(size):
        lowest = max(lowest, lower[index])
        if lowest > upper[index]:
            raise NotLinearizable(
                f"entry {index} was in the log before {upper[index]}, but it or an earlier one was added "
                f"after {lowest}"
            )


def _bound_by_appends(
    calls: Sequence[Call], body_of: Callable[[int], bytes], lower: list[int], upper: list[int]
) -> None:
    final: dict[bytes, int] = {}
    for index in range(len(lower)):
        body = body_of(index)
        if body in final and body and not body.startswith(_OF_LEADERS):
            raise NotLinearizable(f"{body[:40]!r} is in the log at {final[body]} and {index}")
        final[body] = index
    for call in calls:
        if call.kind != "append":
            continue
        at = final.get(call.body, -1)
        if call.outcome == "ok" and at != call.index:
            raise NotLinearizable(f"{call.client}'s append was answered {call.index}, the log has it at {at}")
        if call.outcome == "failed" and at >= 0:
            raise NotLinearizable(f"{call.client}'s append was refused, but the log has it at {at}")
        if at >= 0:
            lower[at] = max(lower[at], call.began)
            upper[at] = min(upper[at], call.ended)


def _next(index: int) -> int:
    return index + 1


def _bound_by_reads(
    calls: Sequence[Call], body_of: Callable[[int], bytes], lower: list[int], upper: list[int],
    next_change: Callable[[int], int],
) -> None:
    size = len(lower)
    for call in calls:
        if call.kind == "append" or call.outcome in ("unknown", "failed"):
            continue
        seen = beyond = call.index
        if call.kind in _LAST:
            beyond = next_change(seen) if call.kind == "state" else seen + 1
        if call.outcome == "ok" and seen >= 0:
            if seen >= size:
                raise NotLinearizable(f"{call.client} saw entry {seen}, the log ends at {size - 1}")
            if call.kind == "get" and call.body != body_of(seen):
                raise NotLinearizable(f"{call.client} read another body at {seen} than the log has")
            upper[seen] = min(upper[seen], call.ended)
        if (call.outcome == "beyond" or call.kind in _LAST) and 0 <= beyond < size:
            lower[beyond] = max(lower[beyond], call.began)


def brute_force(calls: Sequence[Call], is_change: Callable[[bytes], bool] = bool) -> bool:
    """
    Whether any log could have given these answers, for few calls: tries every order, with every subset of the
    appends without an answer.
    """
    certain = [call for call in calls if call.outcome in ("ok", "beyond")]
    maybe = [call for call in calls if call.kind == "append" and call.outcome == "unknown"]
    return any(
        _can_go_on(certain + [call for bit, call in enumerate(maybe) if chosen >> bit & 1], (), is_change)
        for chosen in range(1 << len(maybe))
    )


def _can_go_on(
    left: list[Call], log: tuple[bytes, ...], is_change: Callable[[bytes], bool]
) -> bool:
    """Whether the remaining calls, in some order, can follow on the present content of the log."""
    if not left:
        return True
    first_end = min(call.ended for call in left)
    for call in left:
        if call.began > first_end:
            continue  # another one had ended before this one began: that one is first
        after = _behaves(call, log, is_change)
        rest = [other for other in left if other is not call]
        if after is not None and _can_go_on(rest, after, is_change):
            return True
    return False


def _behaves(
    call: Call, log: tuple[bytes, ...], is_change: Callable[[bytes], bool]
) -> tuple[bytes, ...] | None:
    """The log after the call, or None if its answer contradicts the log."""
    if call.kind == "append":
        fits = call.outcome == "unknown" or call.index == len(log)
        return (*log, call.body) if fits else None
    if call.kind == "end":
        fits = call.index == len(log) - 1
    elif call.kind == "state":
        fits = call.index == max((at for at, body in enumerate(log) if is_change(body)), default=-1)
    elif call.outcome == "beyond":
        fits = call.index >= len(log)
    else:
        fits = call.index < len(log) and log[call.index] == call.body
    return log if fits else None
