# -*- test-case-name: tests.client.test_readers -*-
"""The readers of a scripted group: decided by the rules of real members, in one list of entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dledger.node.requests import reader_rules as rules
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupFold, GroupState, Marked
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse
from protocols.wire.ledger.own.own_entries import READER_CHANNEL
from protocols.wire.ledger.readers import (
    ReaderInfo,
    ReaderPart,
    ReaderState,
    encode_reader_entry,
    encode_readers,
)


class FakeHandler:
    """
    @ivar own: indexes of the entries of readers.
    @ivar page_max: readers in one answer to a list.
    """

    page_max = 64

    def __init__(self, log: list[bytes], seconds: Callable[[], float]) -> None:
        self.fold = GroupFold(GroupState())
        self.own: set[int] = set()
        self._log = log
        self._seconds = seconds
        self._heard_s: dict[int, float] = {}

    def answer(self, request: ReaderRequest, span: rules.Span, base: dict[str, Any]) -> ReaderResponse:
        """@raise DLedgerError: as a leader refuses."""
        problem = rules.reader_problem(request)
        if problem:
            raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)
        known = self.fold.state.readers
        if request.does == "list":
            page = known.after(request.name, self.page_max)
            return ReaderResponse(readers=encode_readers(
                ReaderInfo(one.state.name, one.state.next_index, 0,
                           tuple(part.holder for part in one.state.parts)) for one in page
            ), more=known.count_after(request.name) - len(page), **base)
        one = known.get(request.name)
        is_new = False
        state = one.state if one is not None and not one.state.is_forgotten else None
        if state is None:
            if request.does in ("commit", "renew"):
                raise DLedgerError(ResponseCode.LEASE_LOST, reason="the group does not know the reader")
            state = ReaderState(request.name, -1, rules.begin_of(request.index, span))
            is_new = request.does == "move"
        decision = rules.Decision(state) if is_new else self._decision(request, state, span)
        part = decision.part
        if decision.state is not None:
            index, before = len(self._log), -1 if one is None else one.entry_index
            body = encode_reader_entry(decision.state._replace(previous=before))
            self._log.append(body)
            self.own.add(index)
            self.fold.take([Marked(index, 1, READER_CHANNEL, body=body)])
            self.fold.commit(index)
            state = known[request.name].state
            if part is not None and part.token < 0:
                part = part._replace(token=index)
        token, begin, end = (-1, -1, -1) if part is None else (part.token, part.begin, part.end)
        self._heard_s[token] = self._seconds()
        return ReaderResponse(
            token=token, begin_index=begin, end_index=end, next_index=state.next_index,
            committed_index=span.committed_index, **base,
        )

    def _decision(
        self, request: ReaderRequest, state: ReaderState, span: rules.Span
    ) -> rules.Decision:
        if request.does == "renew":
            return rules.Decision(None, rules.part_of(state, request))
        if request.does == "take":
            return rules.take(state, request, span, self._is_live, self._share_end)
        if request.does == "commit":
            return rules.commit(state, request, span)
        if request.does == "release":
            return rules.release(state, request)
        return rules.moved(state, request.index, span) if request.does == "move" else rules.forgotten(state)

    def _share_end(self, begin: int, share: int) -> int:
        programs = [at for at in range(begin, len(self._log)) if at not in self.own]
        if not programs:
            return begin
        return programs[share - 1] + 1 if share <= len(programs) else len(self._log)

    def _is_live(self, part: ReaderPart) -> bool:
        return bool(part.holder) and self._seconds() < self._heard_s[part.token] + part.lease_ms / 1000
