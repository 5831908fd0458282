# -*- test-case-name: tests.hostile.test_soak -*-
"""
Judges a soak by the calls of its clients and by the logs of its members: see
L{dledger.testing.group.checks.history}.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from dledger.testing.group.checks.history import NEVER, Call, NotLinearizable, check
from tests.processes.ledgers import LedgerFault, assert_identical, read_records


def calls_of(paths: Iterable[Path]) -> list[Call]:
    """
    The files of the workers.

    Stamps are times of one clock; two that are equal count as calls at the same time.
    """
    found: list[Call] = []
    for path in paths:
        lines = path.read_text().split("\n")
        for line in lines[:-1]:  # the last one may be cut: that worker was ended
            kind, began, ended, outcome, index, body = json.loads(line)
            is_open = outcome == "unknown"
            found.append(Call(
                kind, 2 * began, index, body.encode(), ended=NEVER if is_open else 2 * ended + 1,
                outcome=outcome, client=path.stem,
            ))
    return found


def judged(calls: list[Call], ledgers: list[Path]) -> list[str]:
    """What is wrong: sentences; none if the history is linearizable and all logs are the same."""
    wrong: list[str] = []
    log = [record.body for record in read_records(ledgers[0])]
    try:
        check(calls, lambda index: log[index], len(log) - 1)
    except NotLinearizable as error:
        wrong.append(f"not linearizable: {error}")
    try:
        assert_identical(ledgers, len(log) - 1)
    except LedgerFault as error:
        wrong.append(f"the logs differ: {error}")
    return wrong


def summary(calls: list[Call]) -> str:
    """Numbers of calls by kind and outcome."""
    counts = Counter(f"{call.kind} {call.outcome}" for call in calls)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
