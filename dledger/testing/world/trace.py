# -*- test-case-name: tests.sim.test_trace -*-
"""
A trace of a run, one line per step, for people; and a digest of all steps, for comparing runs.

A line has: time in seconds, member, role, term, C{end/committed}, input, C{->} effects. Lines are
made only when asked for; docs/how-to-debug.md has the legend.
"""

from __future__ import annotations

import struct
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import attrs

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.messages import LedgerMessage

if TYPE_CHECKING:
    from dledger.core.replica import DLedgerCore

KEPT_STEPS = 30

_PACK = struct.Struct("<qBIqqHH").pack
_BASE_FIELDS = {"group", "remote_id", "local_id", "wire_version", "term", "leader_id"}


class TraceWatch(Protocol):
    """Hears of each step and event when the trace has it."""

    def stepped(self, number: int) -> None:
        """The member of this number has taken a step."""

    def noted(self) -> None:
        """Something else has happened."""


class Trace:
    """
    The last steps and events of a run.

    @ivar steps: number of steps.
    @ivar digest: of every step and event so far.
    @ivar echo: all lines so far; None to keep the last ones only.
    @ivar watch: hears of all steps and events; None: nobody does.
    """

    def __init__(self, *, keep: int = KEPT_STEPS) -> None:
        self.steps = 0
        self.digest = 0
        self.echo: list[str] | None = None
        self.watch: TraceWatch | None = None
        self._kept: deque[tuple[object, ...]] = deque(maxlen=keep)

    def step(
        self, now_us: int, number: int, member_id: str, core: DLedgerCore, happened: ev.Input,
        effects: tuple[fx.Effect, ...],
    ) -> None:
        """A member took one step."""
        state = core.member
        self.steps += 1
        kind = _number_of(type(happened).__name__)
        self.digest = crc32(
            _PACK(now_us, number, state.term & 0xFFFFFFFF, state.ledger_end_index,
                  state.committed_index, kind, len(effects)),
            self.digest,
        )
        self._kept.append((now_us, member_id, state.role, state.term, state.ledger_end_index,
                           state.committed_index, happened, effects))
        if self.echo is not None:
            self.echo.append(_line(self._kept[-1]))
        if self.watch is not None:
            self.watch.stepped(number)

    def note(self, now_us: int, text: str) -> None:
        """An event outside a core: a fault, a restart, a client's call."""
        self.digest = crc32(text.encode(), self.digest)
        self._kept.append((now_us, text))
        if self.echo is not None:
            self.echo.append(_line(self._kept[-1]))
        if self.watch is not None:
            self.watch.noted()

    def lines(self) -> list[str]:
        """The last steps, oldest first."""
        return [_line(item) for item in self._kept]


@cache
def _number_of(name: str) -> int:
    """A number of 16 bits for the name of a kind: the same in every program that has the kind."""
    return crc32(name.encode()) & 0xFFFF


def _line(item: tuple[object, ...]) -> str:
    if len(item) == 2:
        return f"{item[0] / 1e6:11.6f} ---- {item[1]}"  # type: ignore[operator]
    now_us, member_id, role, term, end, committed, happened, effects = item
    reported = " ".join(trace_text(effect) for effect in effects)  # type: ignore[attr-defined]
    return (
        f"{now_us / 1e6:11.6f} {member_id} {role.value[:4]} t{term} {end}/{committed} "  # type: ignore
        f"{trace_text(happened)} -> {reported or '-'}"
    )


def trace_text(thing: object) -> str:
    """An input, effect, message or value in a few characters."""
    if isinstance(thing, EntryBatch):
        last = f"..{thing.last_index}" if thing.count > 1 else ""
        return f"[{thing.first_index}{last} t{thing.term}]"
    if isinstance(thing, LedgerMessage):
        name = type(thing).__name__.replace("Request", "?").replace("Response", "!")
        parts = [] if thing.leader_id is None else [f"by={thing.leader_id}"]
        fields = [f"t{thing.term}", *parts, *_fields(thing, _BASE_FIELDS)]
        return f"{name}({' '.join(fields)})"
    if isinstance(thing, fx.Report):
        return f"#{thing.event}"
    if isinstance(thing, ev.Input | ev.Proposal | fx.Effect):
        return f"{type(thing).__name__}({' '.join(_fields(thing, set()))})"
    if isinstance(thing, tuple) and thing and isinstance(thing[0], bytes):
        return f"{len(thing)} bodies"
    if isinstance(thing, bytes):
        return f"{len(thing)}B"
    if isinstance(thing, tuple):
        return "[" + " ".join(trace_text(part) for part in thing) + "]"
    return str(getattr(thing, "name", thing))


def _fields(thing: attrs.AttrsInstance, left_out: set[str]) -> list[str]:
    reported = []
    for field in attrs.fields(type(thing)):
        if field.name in left_out:
            continue
        value = getattr(thing, field.name)
        default = field.default
        if default is not attrs.NOTHING and value == default and field.name != "code":
            continue
        if isinstance(value, LedgerMessage | EntryBatch):
            reported.append(trace_text(value))
        else:
            reported.append(f"{field.name}={trace_text(value)}")
    return reported
