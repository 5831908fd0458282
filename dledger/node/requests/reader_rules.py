# -*- test-case-name: tests.node.test_reader_rules -*-
"""
What a leader decides about a reader: new states of L{ReaderState}, from the one that counts.

Rule 1: the parts of a reader are disjoint, and what is done is given to nobody again, unless an operator
moves the reader.
Rule 2: only the process whose token a part has can commit there. A part whose lease is over, or that was
given back, goes to the next process that asks, with a new token.
Rule 3: a part without an end is read by one process alone; while it has a lease, nobody else gets a part, and
it is not given while another part has one.
Rule 4: each request can be repeated: the second one changes nothing, and nothing is written.

Time is an argument: which leases are over is reported by L{dledger.node.requests.readers}.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ReaderRequest
from protocols.wire.ledger.owners import proof_of
from protocols.wire.ledger.readers import (
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    NO_END,
    READER_PARTS_MAX,
    SHARE_MAX,
    ReaderPart,
    ReaderState,
    reader_name_problem,
)

#: Whether the lease of a part is not over.
IsLive = Callable[[ReaderPart], bool]
#: Where a share ends that begins at an index and has a number of entries of programs: after the last of them
#: that is committed; at its begin if there is none.
ShareEnd = Callable[[int, int], int]


@attrs.frozen
class Span:
    """The log: C{begin_index} is its first entry, -1 if it is empty; C{committed_index} may be -1."""

    begin_index: int
    committed_index: int


@attrs.frozen
class Decision:
    """
    @ivar state: to be written; None: it is so already.
    @ivar part: of the process that asked; its token is -1 if C{state} gives it.
    """

    state: ReaderState | None
    part: ReaderPart | None = None


def reader_problem(request: ReaderRequest) -> str:
    """What is wrong with a request, whatever the group knows; empty: nothing."""
    is_first = request.does == "list" and not request.name
    problem = "" if is_first else reader_name_problem(request.name)
    if request.does == "take" and not problem:
        problem = reader_name_problem(request.holder, "the id of a process")
        if not LEASE_MS_MIN <= request.lease_ms <= LEASE_MS_MAX:
            problem = f"a lease of {request.lease_ms} ms; {LEASE_MS_MIN} to {LEASE_MS_MAX} are allowed"
        if not 0 <= request.share <= SHARE_MAX:
            problem = f"a share of {request.share} entries; 1 to {SHARE_MAX} are allowed, 0 for no end"
    return problem


def begin_of(index: int, span: Span) -> int:
    """
    Where a reader begins that the group does not know.

    @param index: an entry; a negative number counts back from the committed end, L{NO_END}: after that.
        Entries that expiry has deleted are left out.
    @raise DLedgerError: INDEX_OUT_OF_RANGE: it is beyond the end.
    """
    end = span.committed_index + 1
    if index == NO_END:
        return end
    if index > end:
        raise DLedgerError(ResponseCode.INDEX_OUT_OF_RANGE, reason=(
            f"the reader cannot begin at {index}: the log ends with the entry {span.committed_index}"
        ))
    return max(index if index >= 0 else end + index, span.begin_index, 0)


def take(
    state: ReaderState, request: ReaderRequest, span: Span, is_live: IsLive, share_end: ShareEnd
) -> Decision:
    """
    Give a part to a process. A share counts entries of programs alone: each part makes two entries of the
    reader, and a log of many readers would grow by their own entries for ever. A share that begins with
    deleted entries has all of these.

    @return: without a part if there is nothing to read now.
    @raise DLedgerError: LEASE_HELD: other processes have what there is.
    """
    holder, share = request.holder, request.share
    proof = proof_of(request.secret)
    mine = holder, proof
    own = next((part for part in state.parts if part.process == mine and part.begin < part.end), None)
    if own is not None:
        return Decision(None, own)
    # (What this process has done, and what others did whose leases are over, is not needed any more.)
    parts = [
        part for part in state.parts if part.begin < part.end or (part.process != mine and is_live(part))
    ]
    live = [part for part in parts if part.begin < part.end and is_live(part)]
    if live and (not share or any(part.end == NO_END for part in live)):
        raise DLedgerError(ResponseCode.LEASE_HELD, holder=live[0].holder, reason=(
            f"{live[0].holder} reads as {state.name}; its lease is of {live[0].lease_ms} ms"
        ))
    free = next((part for part in parts if part.begin < part.end and not is_live(part)), None)
    given = state.given_index
    if free is not None and free.end != NO_END:
        begin, end = free.begin, free.end
    else:
        begin, end = (free.begin, NO_END) if free is not None else (given, NO_END)
        if share:
            end = share_end(begin, share)
            if begin >= end:
                return Decision(None)
            end = max(end, span.begin_index)
        given = end
    if free is not None:
        parts.remove(free)
    if len(parts) >= READER_PARTS_MAX:
        raise DLedgerError(ResponseCode.LEASE_HELD, reason=(
            f"{len(parts)} processes read as {state.name}, which is the most"
        ))
    part = ReaderPart(begin, end, -1, request.lease_ms, holder, proof)
    return Decision(state._replace(given_index=given, parts=tuple(sorted((*parts, part)))), part)


def part_of(state: ReaderState, request: ReaderRequest) -> ReaderPart:
    """
    The part with the token of a request, if its secret is that of the process.

    @raise DLedgerError: LEASE_LOST.
    """
    for part in state.parts:
        if part.token == request.token and part.holder and part.proof == proof_of(request.secret):
            return part
    raise DLedgerError(ResponseCode.LEASE_LOST, token=request.token, reason=(
        f"the lease {request.token} of the reader {state.name} is over: another process has its entries, "
        "they were given back, or an operator has moved the reader"
    ))


def commit(state: ReaderState, request: ReaderRequest, span: Span) -> Decision:
    """
    The entries of a part up to C{request.index} are done: all of it, if that is the end of what was deleted
    and lies beyond the part.

    @raise DLedgerError: LEASE_LOST; INDEX_OUT_OF_RANGE: it is not committed in the log; UNEXPECTED_ARGUMENT:
        it goes back, or beyond the part to an entry that the log has.
    """
    part, index = part_of(state, request), request.index
    if part.end <= index < span.begin_index:
        index = part.end - 1
    if index > span.committed_index:
        raise DLedgerError(ResponseCode.INDEX_OUT_OF_RANGE, reason=(
            f"the entry {index} is not in the log, which ends with {span.committed_index}"
        ))
    if index == part.begin - 1:
        return Decision(None, part)
    if not part.begin <= index < part.end:
        raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=(
            f"the entry {index} of {state.name}: " + (
                f"all before {part.begin} are done, and a reader does not go back (dledger readers move does)"
                if index < part.begin else f"this process has the entries before {part.end}"
            )
        ))
    done = part._replace(begin=index + 1)
    parts = tuple(done if one is part else one for one in state.parts)
    return Decision(state._replace(parts=parts), done)


def release(state: ReaderState, request: ReaderRequest) -> Decision:
    """Give a part back, if this token has it."""
    try:
        released = part_of(state, request)
    except DLedgerError:
        return Decision(None)
    parts = [part._replace(holder="") if part is released else part for part in state.parts]
    kept = tuple(part for part in parts if part.holder or part.begin < part.end)
    return Decision(state._replace(parts=kept))


def heard(state: ReaderState, part: ReaderPart) -> Decision:
    """The process of a part is there: nothing of its lease is over."""
    there = part._replace(silent_ms=0)
    parts = tuple(there if one is part else one for one in state.parts)
    return Decision(state._replace(parts=parts), there)


def moved(state: ReaderState, index: int, span: Span) -> Decision:
    """
    Put a reader to an entry; all its leases end.

    @raise DLedgerError: INDEX_OUT_OF_RANGE: it is beyond the end.
    """
    there = ReaderState(state.name, state.previous, begin_of(index, span), owner=state.owner)
    is_so = not state.is_forgotten and (there.given_index, there.parts) == (state.given_index, state.parts)
    return Decision(None if is_so else there)


def forgotten(state: ReaderState) -> Decision:
    """Forget a reader; all its leases end."""
    return Decision(ReaderState(state.name, state.previous, 0, is_forgotten=True, owner=state.owner))
