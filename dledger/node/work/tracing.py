# -*- test-case-name: tests.node.test_tracing -*-
"""
Spans of the work of one member: appends, writes, flushes, commits, and entries applied::

    append   proposals of one reactor turn taken -> the last of them answered        (at the leader)
      write  entries of one write -> in the file
      commit in the file -> known to be committed
      apply  given to the state machine -> applied, see L{dledger.machine.tracing}
    write    likewise, of what the leader pushed                                     (at a follower)
      commit, apply
    flush    fsync begun -> ended

Rule 1: a member without tracing runs the plain L{Driver}; nothing of this is on its way.
Rule 2: as many spans are open as L{BoundedSpans} allows; as many roots are kept for the state machine.
Rule 3: every span ends: with its outcome, or when the member stops.

The members of a group do not inform each other of spans: the wire has no room for it that Java would take.
Term and index say which belong together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from dledger.base.tracing.spans import SPANS_MAX, BoundedSpans, Spans
from dledger.core.driver import Driver, Ledger, Stepping, Surroundings, Terms
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode


@attrs.define
class _Append:
    """
    Proposals of one turn.

    @ivar waiting: tokens without an answer.
    @ivar facts: what the answers say; C{result} is the first that is not SUCCESS.
    """

    span: object
    waiting: set[int]
    facts: dict[str, int | str] = attrs.Factory(dict)


@attrs.frozen
class _Written:
    """Entries in the file. @ivar root: of their trace. @ivar commit: the span that waits for the commit."""

    first_index: int
    last_index: int
    root: object
    commit: object


class OpenSpans(BoundedSpans):
    """
    The open spans of one member.

    Invariant: C{_written} is in the order of indexes; an L{_Append} is in C{_appends} once for each token.
    """

    def __init__(self, spans: Spans, *, has_machine: bool = False, spans_max: int = SPANS_MAX) -> None:
        """@param has_machine: roots are kept until a state machine has applied their entries."""
        super().__init__(spans, spans_max=spans_max)
        self._has_machine = has_machine
        self._appends: dict[int, _Append] = {}
        self._written: deque[_Written] = deque()
        self._committed: deque[_Written] = deque(maxlen=spans_max)
        self._flush: object | None = None

    def proposed(self, happened: ev.AppendProposed) -> None:
        """Proposals were taken."""
        proposals = happened.proposals
        bodies = [len(body) for one in proposals for body in one.bodies]
        span = self.begin("append", {
            "requests": sum(one.requests for one in proposals), "count": len(bodies), "bytes": sum(bodies),
        })
        if span is not None:
            append = _Append(span, {one.token for one in proposals})
            self._appends.update(dict.fromkeys(append.waiting, append))

    def root_of(self, happened: ev.Input) -> object | None:
        """The span of the proposals in an input."""
        if isinstance(happened, ev.AppendProposed):
            append = self._appends.get(happened.proposals[0].token)
            return None if append is None else append.span
        return None

    def answered(self, answer: fx.AnswerAppend) -> None:
        """One proposal has its outcome."""
        append = self._appends.pop(answer.token, None)
        if append is None:
            return
        append.waiting.discard(answer.token)
        facts = append.facts
        if answer.first_index >= 0:
            facts.setdefault("first_index", answer.first_index)
        if facts.get("result", "SUCCESS") == "SUCCESS":
            facts |= {"result": answer.code.name, "term": answer.term}
        if not append.waiting:
            self.end(append.span, **facts)

    def wrote(
        self, span: object | None, root: object | None, first_index: int, count: int, term: int
    ) -> None:
        """Entries are in the file."""
        self.end(span, result="written")
        root = span if root is None else root
        commit = self.begin("commit", {"first_index": first_index, "count": count, "term": term}, root)
        if commit is not None:
            self._written.append(_Written(first_index, first_index + count - 1, root, commit))

    def committed(self, committed_index: int) -> None:
        """Entries are known to be committed."""
        while self._written and self._written[0].last_index <= committed_index:
            written = self._written.popleft()
            self.end(written.commit, result="committed")
            if self._has_machine:
                self._committed.append(written)

    def cut(self, end_index: int, result: str = "truncated") -> None:
        """Entries after C{end_index} are there no more."""
        while self._written and self._written[-1].last_index > end_index:
            self.end(self._written.pop().commit, result=result)

    def flushing(self, end_index: int) -> None:
        """An fsync begins; there is one at a time."""
        self.flushed("failed")
        self._flush = self.begin("flush", {"end_index": end_index})

    def flushed(self, result: str = "flushed") -> None:
        """It has ended."""
        flush, self._flush = self._flush, None
        self.end(flush, result=result)

    def root_with(self, index: int) -> object | None:
        """The root of the trace of a committed entry, if it is kept; earlier ones are kept no more."""
        while self._committed and self._committed[0].last_index < index:
            self._committed.popleft()
        for one in (*tuple(self._committed)[:1], *tuple(self._written)[:1]):
            if one.first_index <= index <= one.last_index:
                return one.root
        return None

    def stop(self) -> None:
        """The member has stopped: end everything."""
        self.cut(-1, "stopped")
        self.flushed("stopped")
        for append in {id(one): one for one in self._appends.values()}.values():
            self.end(append.span, **append.facts | {"result": "stopped"})
        self._appends.clear()
        self._committed.clear()


class TracedDriver(Driver):
    """A driver that reports to a L{OpenSpans}."""

    def __init__(
        self, core: Stepping, ledger: Ledger, terms: Terms, around: Surroundings, *, trace: OpenSpans
    ) -> None:
        super().__init__(core, ledger, terms, around)
        self._trace = trace

    def _runners_now(self) -> dict[type[fx.Effect], Callable[..., ev.Input | None]]:
        runners = super()._runners_now()
        return {**runners, fx.AnswerAppend: self._answer, fx.FlushLedger: self._flush}

    def feed(self, *happened: ev.Input) -> None:
        if not self.is_stopped:
            for one in happened:
                if isinstance(one, ev.AppendProposed):
                    self._trace.proposed(one)
                elif isinstance(one, ev.EntriesFlushed):
                    self._trace.flushed()
        super().feed(*happened)

    def stop(self) -> None:
        super().stop()
        self._trace.stop()

    def _answer(self, effect: fx.AnswerAppend) -> None:
        self._trace.answered(effect)
        self._around.answer_append(effect)

    def _write_bodies(self, effect: fx.WriteBodies) -> ev.Input:
        trace, count = self._trace, len(effect.bodies)
        root = None if self.happened is None else trace.root_of(self.happened)
        span = trace.begin("write", {
            "first_index": effect.first_index, "count": count, "term": effect.term,
            "bytes": sum(map(len, effect.bodies)),
        }, root)
        outcome: ev.Input | None = None
        try:
            outcome = super()._write_bodies(effect)
        finally:
            self._end_write(outcome, span, root, effect.term)
        return outcome

    def _write_entries(self, effect: fx.WriteEntries) -> ev.Input:
        entries = effect.entries
        span = self._trace.begin("write", {
            "first_index": entries.first_index, "count": entries.count, "term": entries.term,
            "bytes": entries.size,
        })
        outcome: ev.Input | None = None
        try:
            outcome = super()._write_entries(effect)
        finally:
            self._end_write(outcome, span, None, entries.term)
        return outcome

    def _end_write(self, outcome: ev.Input | None, span: object, root: object, term: int) -> None:
        """@param outcome: None: the write raised."""
        if isinstance(outcome, ev.EntriesWritten):
            self._trace.wrote(span, root, outcome.first_index, outcome.count, term)
        else:
            code = outcome.code if isinstance(outcome, ev.WriteRefused) else ResponseCode.DISK_ERROR
            self._trace.end(span, result=code.name)

    def _truncate_ledger(self, effect: fx.TruncateLedger) -> ev.Input:
        outcome = super()._truncate_ledger(effect)
        if isinstance(outcome, ev.LedgerTruncated):
            self._trace.cut(outcome.end_index)
        return outcome

    def _flush(self, effect: fx.FlushLedger) -> None:
        self._trace.flushing(effect.end_index)
        self._around.start_flush(effect)

    def _record_commit(self, effect: fx.RecordCommit) -> None:
        self._trace.committed(effect.committed_index)
        super()._record_commit(effect)
