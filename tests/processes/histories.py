# -*- test-case-name: tests.processes.test_histories -*-
"""
Compares the answers that clients got with the log.

The checks, for appends of unique bodies that are never repeated:
1. an acknowledged append is at its index, with its body;
2. no body is in the log twice;
3. an append that was reported as failed is not in the log;
4. the acknowledged appends of one writer are in the order of its calls;
5. an append that was called after another was acknowledged is after it;
6. every entry was appended by a client, except those with empty bodies (term-start entries).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.processes.writer import Attempt, body_of, name_of, parse_line


class History:
    """The history file of a writer process, read while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: list[Attempt] = []
        self._position = 0
        self._rest = ""

    def read_on(self) -> list[Attempt]:
        """The lines added since the last call."""
        if not self.path.exists():
            return []
        with open(self.path) as file:
            file.seek(self._position)
            text = self._rest + file.read()
            self._position = file.tell()
        lines = text.split("\n")
        self._rest = lines.pop()
        fresh = [parse_line(line) for line in lines]
        self.outcomes += fresh
        return fresh

    def first_ok_after(self, called_after_ms: float) -> Attempt | None:
        """Among the appends that were called after that moment, the one acknowledged first."""
        self.read_on()
        found = None
        for outcome in reversed(self.outcomes):
            if outcome.done_ms < called_after_ms:
                break
            if outcome.outcome == "ok" and outcome.sent_ms > called_after_ms:
                if found is None or outcome.done_ms < found.done_ms:
                    found = outcome
        return found


def check_history(
    outcomes: Sequence[Attempt], log: Mapping[int, bytes], *, body_bytes: int, limit: int = 20
) -> list[str]:
    """
    The errors found, as sentences; at most C{limit} of them.

    @param log: index to body, of the whole log.
    """
    wrong: list[str] = []
    wrong += _check_outcomes(outcomes, log, body_bytes)
    wrong += _check_log(outcomes, log)
    wrong += _check_orders([outcome for outcome in outcomes if outcome.outcome == "ok"])
    return wrong[:limit]


def _check_outcomes(outcomes: Iterable[Attempt], log: Mapping[int, bytes], body_bytes: int) -> list[str]:
    present = {name_of(body) for body in log.values() if body}
    wrong = []
    for outcome in outcomes:
        name = (outcome.writer, outcome.sequence)
        if outcome.outcome == "ok":
            if log.get(outcome.index) != body_of(*name, body_bytes):
                stands = log.get(outcome.index)
                wrong.append(f"LOST: {name} was acknowledged at {outcome.index}, but {stands!r:.80} is there")
        elif outcome.outcome == "failed" and name in present:
            wrong.append(f"FALSE FAILURE: {name} was reported as failed and is in the log")
    return wrong


def _check_log(outcomes: Iterable[Attempt], log: Mapping[int, bytes]) -> list[str]:
    named = {(outcome.writer, outcome.sequence) for outcome in outcomes}
    seen: dict[tuple[int, int], int] = {}
    wrong = []
    for index, body in sorted(log.items()):
        if not body:
            continue
        name = name_of(body)
        if name in seen:
            wrong.append(f"DOUBLED: {name} is at {seen[name]} and at {index}")
        if name not in named:
            wrong.append(f"FOREIGN: {name} at {index} was never appended")
        seen[name] = index
    return wrong


def _check_orders(acknowledged: list[Attempt]) -> list[str]:
    wrong = []
    last: dict[int, Attempt] = {}
    for outcome in sorted(acknowledged, key=lambda outcome: (outcome.writer, outcome.sequence)):
        before = last.get(outcome.writer)
        if before is not None and before.index >= outcome.index:
            wrong.append(
                f"REORDERED: writer {outcome.writer}: {before.sequence} at {before.index}, "
                f"{outcome.sequence} at {outcome.index}"
            )
        last[outcome.writer] = outcome
    by_done = sorted(acknowledged, key=lambda outcome: outcome.done_ms)
    done, highest = 0, -1
    for outcome in sorted(acknowledged, key=lambda outcome: outcome.sent_ms):
        while by_done[done].done_ms < outcome.sent_ms:
            highest = max(highest, by_done[done].index)
            done += 1
        if outcome.index <= highest:
            wrong.append(
                f"BACK IN TIME: {(outcome.writer, outcome.sequence)} at {outcome.index} was called after "
                f"{highest} was acknowledged"
            )
    return wrong
