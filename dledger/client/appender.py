# -*- test-case-name: tests.client.test_appender,tests.client.test_append_order -*-
"""
Sends the appends of a client to the leader, through a L{WindowedSender}.

Rule 1: bodies are written in the order of the calls (L{dledger.base.sending.sender}, rules 1 and 2).
Rule 2: only bodies that are certainly not in the log are sent again. After a lost connection, a time-out,
501, 502, or any code that may follow the write, the outcome is unknown, and the bodies are not sent again.
With numbers (C{exactly_once}) they are, because the log takes each number of a producer once.
Rule 3: to a Java leader, one frame is under way at a time, because Java's server handles the requests of one
connection in four threads, in any order. With C{is_ordered=False} rule 1 does not hold for Java leaders, and
more frames are under way.

An append whose outcome is unknown may still reach the log after later appends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from dledger.base.sending.bodies import BytesLike, checked_bodies, total_bytes
from dledger.base.sending.send_queue import Numbers, SendCall, SentFrame, Window
from dledger.base.sending.sender import WindowedSender
from dledger.base.timing import Backoff
from dledger.client.connect_options import ConnectOptions
from dledger.client.connection import MemberLink, RequestRefused
from dledger.client.enveloping import Enveloping, Headers
from dledger.client.errors import AppendError, append_error
from dledger.client.lone_appends import BODY_BYTES_MAX, NO_PRODUCERS, Facts, new_producer_id
from dledger.client.members import Members
from dledger.client.rivals import SILENT_S, Rivals
from dledger.client.values import Appended
from dledger.values.errors import DLedgerError
from dledger.values.ledger.append_refusals import FINAL, OUT_OF_SEQUENCE, PASSING
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.envelopes import ENVELOPE_MAGIC
from protocols.wire.ledger.messages import (
    AppendOnceRequest,
    AppendRequest,
    AppendResponse,
    Request,
    Response,
)

#: Longest pause, before jitter, between two searches for a leader.
_PAUSE_MAX_S = 0.25
#: First pause, before jitter: a hand-over takes about 0.03 seconds.
_PAUSE_MIN_S = 0.01
#: An election takes about 0.4 seconds. Pauses that doubled would often let the new leader wait as long again.
_PAUSE_GROWTH = 1.25

AppendOutcome = tuple[Appended, ...] | AppendError
#: Called once per call, with the appended entries or the error.
AppendDone = Callable[[AppendOutcome], None]
_Call = SendCall[Appended]
_Frame = SentFrame[Appended]


class _LeaderSearch:
    """
    Finds the leader, and remembers its connection.

    @ivar current: the connection to the leader; None: the leader must be looked for.
    @ivar hint: id of the leader by the last refusal; the search asks it first.
    """

    def __init__(
        self, members: Members, found: Callable[[MemberLink | None], None]
    ) -> None:
        self._members = members
        self._found = found
        self._seeking: Deferred[MemberLink | None] | None = None
        self.current: MemberLink | None = None
        self.hint: str | None = None

    def seek(self) -> None:
        """
        Look for the leader, unless a search is under way. At its end, C{found} is called with the connection
        to the leader, or with None if there is no leader.
        """
        if self._seeking is None:
            hint, self.hint = self.hint, None
            self._seeking = self._members.leader(hint)
            self._seeking.addCallbacks(self._sought, self._cancelled)

    def _sought(self, leader: MemberLink | None) -> None:
        self._seeking = None
        if leader is not None and not leader.is_connected:
            leader = None
        self.current = leader
        self._found(leader)

    def _cancelled(self, _failure: Failure) -> None:
        self._seeking = None

    def doubt(self, leader: MemberLink) -> None:
        """Forget the leader, if it is still this one, so that the next frame looks for it again."""
        if self.current is leader:
            self.current = None

    def close(self) -> None:
        """End the search that is under way; C{found} is not called for it."""
        if self._seeking is not None:
            self._seeking.cancel()


class Appender:
    """
    Appends the bodies of one client. It is the L{SendTarget} of its sender.

    @ivar sender: has the queue of bodies, and the frames under way.
    @cvar NOUN: word for bodies, for errors.
    @cvar OUTCOMES: codes of answers about bodies that are in the log.
    """

    NOUN = "bodies"
    OUTCOMES: frozenset[ResponseCode] = frozenset({ResponseCode.SUCCESS})

    def __init__(
        self,
        members: Members,
        rivals: Rivals,
        options: ConnectOptions,
        *,
        clock: IReactorTime,
        enveloping: Enveloping,
    ) -> None:
        limits = options.limits
        self._enveloping = enveloping
        self._is_enveloped = enveloping.is_timed
        self._numbers = Numbers(partial(new_producer_id, members.rng)) if options.exactly_once else None
        self.sender: WindowedSender[Appended] = WindowedSender(
            self, clock=clock, turn=members.turn, limits=limits, noun=self.NOUN, numbers=self._numbers
        )
        self._members = members
        self._rivals = rivals
        self._clock = clock
        self._limits = limits
        self._timeout_s = options.timeout_s
        self._answer_timeout_s = options.answer_timeout_s
        self._is_ordered = options.is_ordered
        self._native_window = Window(
            limits.frames_in_flight_max, limits.in_flight_bytes_max, limits.frame_count_max
        )
        self._leader = _LeaderSearch(members, self._found)
        self._backoff = Backoff(
            rng=members.rng, first_s=_PAUSE_MIN_S, most_s=_PAUSE_MAX_S, growth=_PAUSE_GROWTH
        )
        self._refusal: DLedgerError | None = None
        self._has_paused = False  # since the last acknowledgement

    def submit(
        self, bodies: Sequence[BytesLike], done: AppendDone, stream: object = None, headers: Headers = None,
        *, at_once: bool = False,
    ) -> None:
        """
        Append bodies in order.

        @param bodies: the sequence must not be changed afterwards.
        @param done: is called once; before this method returns only if C{bodies} is empty, or is refused
            here.

        @param stream, headers: see L{LogClient.submit<dledger.client.client.LogClient.submit>}.
        @param at_once: see L{WindowedSender.submit}.
        """
        if not bodies:
            done(())
            return
        body, is_enclosed, problem = bodies[0], self._is_enveloped or headers is not None, ""
        kept: Sequence[bytes]
        # Bodies compare like texts: one that begins with the magic is not before it.
        if (len(bodies) == 1 and type(body) is bytes and body < ENVELOPE_MAGIC and not is_enclosed
                and (size := len(body)) <= BODY_BYTES_MAX):
            kept = bodies  # type: ignore[assignment]  # the most frequent call
        else:
            kept, size, problem = checked_bodies(bodies, BODY_BYTES_MAX)
            if not problem and (is_enclosed or max(kept) >= ENVELOPE_MAGIC):
                kept, problem = self._enveloping.enclose(kept, headers)
                size = total_bytes(kept)
        call: _Call = SendCall(kept, size, done, self._clock.seconds() + self._timeout_s, None, stream)
        if problem:
            self.sender.refuse(call, ResponseCode.UNEXPECTED_ARGUMENT, problem)
        else:
            self.sender.submit(call, at_once=at_once)

    def close(self) -> None:
        """Fail every call: bodies in unanswered frames are unknown, the rest are not in the log."""
        self._leader.close()
        self.sender.close()

    # -- SendTarget ------------------------------------------------------------------------------

    def window(self) -> Window | None:
        """See L{SendTarget.window}."""
        leader, limits = self._leader.current, self._limits
        if leader is None or not leader.protocol.is_open:
            self._leader.seek()
            return None
        if leader.protocol.is_native:
            return self._native_window
        is_alone = self._is_ordered and leader.wire_version < 1
        return Window(1 if is_alone else limits.remoting_in_flight_max, limits.in_flight_bytes_max, 1)

    def transmit(self, frame: _Frame, bodies: list[bytes]) -> None:
        """See L{SendTarget.transmit}."""
        leader = self._leader.current
        assert leader is not None
        frame.connection = leader
        request: Request
        if self._numbers is None:
            request = AppendRequest(
                group=self._members.group, remote_id=leader.member_id, bodies=tuple(bodies)
            )
        else:
            try:
                request = self._numbered(leader, frame, bodies)
            except RequestRefused as refused:
                self._answered(leader, frame, refused)
                return
        leader.request(request, partial(self._answered, leader, frame))

    def _numbered(self, leader: MemberLink, frame: _Frame, bodies: list[bytes]) -> Request:
        """The request that sends a frame with numbers. @raise RequestRefused: this leader takes none."""
        group, remote_id = self._members.group, leader.member_id
        if not leader.is_ours:
            raise RequestRefused(ResponseCode.UNSUPPORTED, reason=NO_PRODUCERS)
        call, first, _ = frame.parts[0]
        return AppendOnceRequest(
            group=group, remote_id=remote_id, producer=call.producer, sequence=call.base + first,
            bodies=tuple(bodies),
        )

    def is_silent(self, frame: _Frame, waited_s: float) -> None:
        """See L{SendTarget.is_silent}."""
        leader = frame.connection
        assert isinstance(leader, MemberLink)
        if waited_s >= self._answer_timeout_s:
            leader.abort(f"an append was not answered within {self._answer_timeout_s:g} s")
        elif waited_s >= SILENT_S:
            self._rivals.look(leader)

    def pause_s(self) -> float:
        """See L{SendTarget.pause_s}. The first redirect is followed at once: it usually names the leader."""
        is_redirected = self._leader.hint is not None and not self._has_paused
        self._has_paused = True
        wait_s = self._backoff.next_s()
        return 0 if is_redirected else wait_s

    def overdue(self, call: _Call) -> DLedgerError:
        """See L{SendTarget.overdue}."""
        if self.sender.is_closed:
            unanswered = ", and the leader did not answer" if call.unknown else ""
            return DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"the client was closed{unanswered}")
        waited = f"gave up after {self._timeout_s:g} s"
        if call.unknown:
            return DLedgerError(ResponseCode.TIMEOUT, reason=f"{waited}; the leader did not answer")
        if self._refusal is not None:
            facts: dict[str, object] = {**self._refusal.facts, "reason": waited}
            return DLedgerError(self._refusal.code, **facts)
        problems = "; ".join(f"{who}: {why}" for who, why in sorted(self._members.problems.items()))
        reason = f"{waited}; no leader found" + (f" ({problems})" if problems else "")
        return DLedgerError(ResponseCode.METADATA_ERROR, reason=reason)

    def outcome(self, call: _Call) -> AppendOutcome:
        """See L{SendTarget.outcome}."""
        error = call.error
        results = tuple(sorted(call.results, key=_offset)) if len(call.results) > 1 else call.results
        if error is None:
            return results
        return append_error(error.code, is_unknown=call.unknown > 0)(
            error.code, appended=results, failed=call.failed, unknown=call.unknown, **error.facts
        )

    # -- the leader and its answers --------------------------------------------------------------

    def _found(self, leader: MemberLink | None) -> None:
        if leader is None:
            self.sender.pause()
            return
        if self.sender.turn_ended not in leader.turn_ended:
            leader.turn_ended.append(self.sender.turn_ended)
        self.sender.pump()

    def _answered(self, leader: MemberLink, frame: _Frame, result: Response | Exception) -> None:
        if not self.sender.answered(frame):
            return
        if isinstance(result, Response):
            if result.code in self.OUTCOMES:
                self._stored(leader, frame, result)
                return
            self._not_stored(leader, frame, result)
        elif isinstance(result, RequestRefused):
            self._refused(frame, result)
        else:
            self._unknown(frame, DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(result)))
        self.sender.resolve_held()

    def _unknown(self, frame: _Frame, error: DLedgerError) -> None:
        if self._numbers is None:
            self.sender.settle_unknown(frame, error)
        else:
            self._refusal = error
            self.sender.hold_unknown(frame, error)

    def _facts_of(self, answer: Response) -> Facts:
        """Facts of the error for an answer that is a refusal."""
        assert isinstance(answer, AppendResponse)
        return {"index": answer.index} if answer.code is ResponseCode.SEQUENCE_TAKEN else {}

    def _not_stored(self, leader: MemberLink, frame: _Frame, answer: Response) -> None:
        code, facts = answer.code, self._facts_of(answer)
        error = DLedgerError(code, member_id=leader.member_id, leader_id=answer.leader_id, **facts)
        if code in PASSING or code in FINAL:
            self._refused(frame, error)
            if code is ResponseCode.NOT_LEADER:
                self._leader.hint = answer.leader_id
                self._leader.doubt(leader)
        elif code is ResponseCode.SEQUENCE_FORGOTTEN:
            self.sender.settle_unknown(frame, error)
        else:
            self._leader.doubt(leader)
            self._unknown(frame, error)

    def _stored(self, leader: MemberLink, frame: _Frame, answer: Response) -> None:
        assert isinstance(answer, AppendResponse)
        index, count, sender = answer.index, answer.count, self.sender
        is_part = self._numbers is not None and 0 < count < frame.count
        if index < 0 or not (is_part or count == frame.count):
            reason = f"count={count}, index={index} for {frame.count} bodies"
            leader.abort(reason)
            sender.settle_unknown(frame, DLedgerError(ResponseCode.UNKNOWN, reason=reason))
            sender.resolve_held()
            return
        if self._numbers is not None:
            later = DLedgerError(ResponseCode.LEADER_NOT_READY, reason="earlier bodies come first")
            if sender.is_behind_held(frame):
                sender.hold_unknown(frame, later)  # (Its answer comes again, in order.)
                sender.resolve_held()
                return
            if is_part:
                sender.hold_rest(frame, count, later)
        if self._has_paused or self._refusal is not None:
            self._acknowledged()
        count_max = self._native_window.count_max
        if count_max < self._limits.frame_count_max:
            count_max = min(self._limits.frame_count_max, count_max * 2)
            self._native_window = self._native_window._replace(count_max=count_max)
        pos, term = answer.pos, answer.term
        runs: list[Appended] = []
        for _call, first, count in frame.parts:
            runs.append(Appended(index=index, term=term, pos=pos, count=count, offset=first))
            index += count
            pos = -1
        sender.settle_stored(frame, runs)

    def _acknowledged(self) -> None:
        """The leader takes appends."""
        self._refusal = None
        if self._has_paused:
            self._has_paused = False
            self._backoff.reset()

    def _refused(self, frame: _Frame, error: DLedgerError) -> None:
        if self._numbers is not None and error.code in OUT_OF_SEQUENCE:
            self._out_of_sequence(self._numbers, frame, error)
        elif error.code not in PASSING:
            if self.sender.is_maybe(frame):
                self.sender.settle_unknown(frame, error)
            else:
                self.sender.settle_failed(frame, error)
        elif self.sender.hold(frame, error):
            self._refusal = error
            if error.code is ResponseCode.LEADER_PENDING_FULL:
                self._native_window = self._native_window._replace(count_max=max(1, frame.count // 2))

    def _out_of_sequence(self, numbers: Numbers, frame: _Frame, error: DLedgerError) -> None:
        """
        The leader lacks a sequence before those of the frame. It belongs to an earlier frame, which is sent
        again, or to bodies that were given up: then the producer gets a new id.
        """
        if not self.sender.is_oldest(frame):
            self.sender.hold(frame, error)
        elif self.sender.is_maybe(frame):
            self.sender.settle_unknown(frame, error)
        else:
            numbers.given_up(frame.parts[0][0])
            self.sender.hold(frame, error)


def _offset(appended: Appended) -> int:
    return appended.offset
