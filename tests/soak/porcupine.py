# -*- test-case-name: tests.hostile.test_soak -*-
"""
Asks porcupine, an independent checker of linearizability written in Go, about the history of a soak.

The log is known at the end, so the model is the number of client entries: what leaders write by themselves is
left out, and positions are counted without it. An append without an answer may have its instant at any time
after its call if it is in the log, and is left out if it is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dledger.testing.group.checks.history import NEVER, Call
from tests.processes.ledgers import read_records

SOURCE = Path(__file__).with_name("checker")
_BUILT = "DLEDGER_SOAK_PORCUPINE"


def build_porcupine() -> None:
    """Build the program where there is a network; L{porcupine_says} finds it, also in another namespace."""
    go = shutil.which("go")
    target = Path(tempfile.gettempdir()) / f"dledger-porcupine-{os.getuid()}"
    if go is not None and _BUILT not in os.environ:
        done = subprocess.run([go, "build", "-o", str(target), "."], cwd=SOURCE, capture_output=True)
        os.environ[_BUILT] = str(target) if done.returncode == 0 else ""


def porcupine_says(calls: Sequence[Call], ledger: Path) -> str:
    """Its judgement: C{Ok}, C{Illegal} or C{Unknown}; or why there is none."""
    program = os.environ.get(_BUILT, "")
    if not program:
        return "not asked: Go is not installed, or did not get the module"
    lines = "".join(f"{line}\n" for line in lines_of(calls, [one.body for one in read_records(ledger)]))
    done = subprocess.run([program], input=lines, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr[-300:]


def lines_of(calls: Sequence[Call], log: Sequence[bytes]) -> Iterator[str]:
    """The calls as the program reads them: client, kind, position, begin, end."""
    own = {call.body for call in calls if call.kind == "append"}
    rank, place = [0], dict[bytes, int]()
    for body in log:
        if body in own:
            place[body] = rank[-1]
        rank.append(rank[-1] + (body in own))
    clients = {name: number for number, name in enumerate(sorted({call.client for call in calls}))}
    last = max((call.ended for call in calls if call.ended != NEVER), default=0) + 1
    for call in calls:
        kind, at = call.kind, -1
        if kind == "append":
            at = place.get(call.body, -1) if call.outcome != "failed" else -1
        elif call.outcome == "beyond":
            kind, at = "beyond", rank[min(call.index, len(log))]
        elif call.outcome == "ok":
            at = place.get(call.body, -1)
        if at >= 0:
            yield f"{clients[call.client]} {kind} {at} {call.began} {min(call.ended, last)}"
