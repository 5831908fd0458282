# -*- test-case-name: tests.client.test_client -*-
"""
The client of a group: append, read, follow, hand leadership over. Deferred API.

Reads are retried until the deadline, even when the connection is lost. Appends are retried only while they
are certainly not in the log, see L{dledger.client.appender}.

L{dledger.client.blocking} offers the same to programs without a reactor.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar, Unpack
from weakref import WeakSet

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime

from dledger.base.reactor import whole_reactor
from dledger.base.sending.arguments import patience, seconds, text, whole
from dledger.base.sending.bodies import BytesLike
from dledger.base.sending.sender import fire_all, fire_one
from dledger.base.serving.endpoints import EndpointFor, tcp_endpoints
from dledger.base.tls.securing import dialling
from dledger.client.appender import AppendDone, Appender
from dledger.client.commands import MAX_AGE_S, CommandCalls, CommandSender, query_machine
from dledger.client.connect_options import ConnectKeywords, ConnectOptions
from dledger.client.enveloping import Enveloping, Headers, keyed
from dledger.client.errors import AppendError, failure_of
from dledger.client.lone_appends import NO_PRODUCERS, LoneAppends, append_numbered, check_numbers
from dledger.client.look_back import TimesBefore, resets_of, timed_link
from dledger.client.members import ClientSecurity, Members
from dledger.client.places import Place, checked_time, find_begin, is_index, place
from dledger.client.questions import GroupChanges, MemberQuestions, ask_chain_marks
from dledger.client.readers import NamedReader, ReaderCalls, ReaderOptions
from dledger.client.rivals import Rivals
from dledger.client.tails import BatchTail, Tail, checked_options
from dledger.client.values import (
    Appended,
    ChainMark,
    Entry,
    LastSequence,
    MemberInfo,
    as_shown,
    entries_after,
    entries_of,
)
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.messages import (
    BeginStateRequest,
    GetRequest,
    GetResponse,
    MembershipRequest,
    MembershipResponse,
    Request,
    ResetTimesRequest,
    SequenceRequest,
    SequenceResponse,
)
from protocols.wire.ledger.own.own_entries import OwnKind
from protocols.wire.ledger.producers import producer_problem
from protocols.wire.ledger.readers import SHARE_MAX, ReaderInfo

_TailT = TypeVar("_TailT", Tail, BatchTail)


class LogClient:
    """
    One client of one group. All calls and callbacks are in the reactor's thread.

    Calls made before a connection exists wait for a leader, up to the deadline.

    @ivar options: as given.
    """

    def __init__(
        self,
        peers: str | Mapping[str, str],
        *,
        reactor: IReactorTime,
        endpoint_for: EndpointFor | None = None,
        rng: random.Random | None = None,
        wall_s: Callable[[], float] = time.time,
        **options: Unpack[ConnectKeywords],
    ) -> None:
        """
        @param peers: C{n0-host:port;n1-host:port} or member id to C{host:port}; some of the members
            are enough, the others are learnt.
        @param endpoint_for: makes an endpoint from an address (default: TCP).
        @param wall_s: seconds since 1970.
        @param options: those of L{ConnectOptions}.
        @raise ValueError: C{peers} or a time is malformed, or a file of C{tls} is not sound.
        """
        self.options = chosen = ConnectOptions(**options)
        self._clock: IReactorTime = reactor
        self._members = Members(
            peers, group=chosen.group, clock=reactor, wire=chosen.wire, rng=rng or random.SystemRandom(),
            security=ClientSecurity(tls=dialling(chosen.tls, chosen.group), token=chosen.token),
            answer_timeout_s=min(chosen.timeout_s, 1.0),
            endpoint_for=endpoint_for or tcp_endpoints(whole_reactor(reactor), min(chosen.timeout_s, 2.0)),
        )
        rivals = Rivals(self._members, reactor)
        self._questions = MemberQuestions(
            self._members, rivals, reactor, chosen.timeout_s, lambda: self._is_closed
        )
        self._times = TimesBefore(
            self._members, reactor, answer_timeout_s=chosen.answer_timeout_s, timeout_s=chosen.timeout_s
        )
        self._enveloping = Enveloping(is_timed=chosen.envelope, wall_s=wall_s)
        self._appender = Appender(
            self._members, rivals, chosen, clock=reactor, enveloping=self._enveloping
        )
        self._commands = CommandCalls(LoneAppends(
            members=self._members, find_leader=self._questions.leader, clock=reactor,
            timeout_s=chosen.timeout_s, answer_timeout_s=chosen.answer_timeout_s,
            is_closed=lambda: self._is_closed,
        ), CommandSender(
            self._members, rivals, chosen, clock=reactor, enveloping=self._enveloping
        ))
        self._tails: WeakSet[Tail | BatchTail] = WeakSet()
        self._readers: WeakSet[NamedReader] = WeakSet()
        self._is_closed = False

    @property
    def group(self) -> str:
        """Name of the raft group."""
        return self._members.group

    @property
    def addresses(self) -> Mapping[str, str]:
        """Member id to C{host:port}, of given and of learnt members."""
        return dict(self._members.addresses)

    @property
    def pending_count(self) -> int:
        """Number of bodies without an outcome."""
        return self._appender.sender.pending_count

    def submit(
        self, bodies: Sequence[BytesLike], done: AppendDone, stream: object = None, headers: Headers = None
    ) -> None:
        """
        Append C{bodies} in order, with one callback for all of them. This call has the least overhead.

        @param bodies: 0 to 4194256 bytes each; the sequence must not be changed afterwards.
        @param done: called once with a tuple of L{Appended}, or with an L{AppendError}; within this
            call only if there are no bodies or they are refused here (pending full, not bytes, too large).
        @param stream: calls with the same object belong together: when a body of one was not acknowledged,
            the unsent bodies of later ones fail. Without it, only those of the same call do.
        @param headers: of each body, see L{append}.
        """
        self._appender.submit(bodies, done, stream, headers)

    def submit_at_once(
        self, bodies: Sequence[BytesLike], done: AppendDone, headers: Headers = None
    ) -> None:
        """
        As L{submit}, but a frame is sent before this returns, not when the reactor's turn ends: for a program
        that appends now, and has nothing else to append in this turn.
        """
        self._appender.submit(bodies, done, headers=headers, at_once=True)

    def append_many(
        self, bodies: Sequence[BytesLike], *, producer: str | None = None, sequence: int | None = None,
        headers: Headers = None, key: BytesLike | None = None,
    ) -> Deferred[tuple[Appended, ...]]:
        """
        Append C{bodies} in order.

        @param producer, sequence: both or none: of the first body, the other bodies have the sequences after
            it; each is in the log once, see L{append}. Not in order with other appends.
        @param headers: of each body, see L{append}.
        @return: fires with the runs of consecutive indexes of the bodies, in order. Fails with
            L{AppendFailed <dledger.client.errors.AppendFailed>} or L{UnknownOutcome
            <dledger.client.errors.UnknownOutcome>}, which also report the acknowledged bodies.
            Cancelling stops the wait, not the append.
        @raise TypeError, ValueError: these parameters do not go together, or have a wrong type.
        """
        headers = headers if key is None else keyed(headers, key)
        if producer is not None or sequence is not None:
            check_numbers(None, producer, sequence)
            if producer is None or sequence is None:
                raise TypeError("append_many() takes both producer and sequence, or none of them")
            enclose = partial(self._enveloping.enclose_all, headers=headers)
            numbered = append_numbered(self._commands.appends, bodies, producer, sequence, enclose)
            return Deferred.fromCoroutine(numbered)
        waiter: Deferred[tuple[Appended, ...]] = Deferred()
        self._appender.submit(bodies, partial(fire_all, waiter), headers=headers)
        return waiter

    def append(
        self, body: BytesLike, *, expected_end: int | None = None, producer: str | None = None,
        sequence: int | None = None, headers: Headers = None, key: BytesLike | None = None,
    ) -> Deferred[Appended]:
        """
        Append C{body} as one entry and wait until it is committed.

        @param expected_end: append only if this is the last index of the log (-1: if the log is empty), so
            that the entry gets the next one. Not in order with other appends of this client.
        @param producer, sequence: both or none: append only if the log has no entry of this producer with
            this sequence; else the result is that entry's. The first sequence of a producer is 0, and each
            one follows the last. After an unknown outcome the same call reports it, also from another
            process, for as long as the log remembers (docs/exactly-once.md). Not in order with other appends.
        @param headers: shown to readers of ours beside the body (docs/envelopes.md): up to 32 of them and
            8192 bytes in all. C{key}, C{entry.key} for readers, is one of them: what the entry is about.
        @return: as of L{append_many}, with a single L{Appended}. With C{expected_end}, fails with
            L{Conflict<dledger.client.errors.Conflict>} if the log ends elsewhere; with C{producer},
            with L{OutOfSequence<dledger.client.errors.OutOfSequence>} if the sequence does not
            follow. UNSUPPORTED: the leader is a Java member, which can do neither.
        @raise TypeError, ValueError: these parameters do not go together.
        """
        headers = headers if key is None else keyed(headers, key)
        if expected_end is not None or producer is not None or sequence is not None:
            check_numbers(expected_end, producer, sequence)
            try:
                sent = self._enveloping.enclose_one(body, headers)
            except AppendError as error:
                return fail(error)
            return Deferred.fromCoroutine(
                self._commands.appends.append(sent, expected_end, producer, sequence)
            )
        waiter: Deferred[Appended] = Deferred()
        self._appender.submit((body,), partial(fire_one, waiter), headers=headers)
        return waiter

    def submit_command(
        self, command: BytesLike, *, producer: str | None = None, sequence: int | None = None
    ) -> Deferred[bytes]:
        """
        Append a command for the state machine of the group, which applies it once however often it is sent,
        see docs/machines.md.

        @param command: at least one byte. Commands that the client numbers are in the log in the order of the
            calls; they are in no order with appends.
        @param producer, sequence: as of L{append}: the program numbers its commands, and may ask again for
            the result of one. Without them the client does.
        @return: fires with what the machine returned, once the leader has applied it. Fails as L{append}
            does, or with L{CommandRefused
            <dledger.client.errors.CommandRefused>}; UNSUPPORTED if the leader runs no machine,
            MACHINE_STOPPED if that has stopped. Cancelling stops the wait, not the append.
        """
        return Deferred.fromCoroutine(self._commands.submit(command, producer, sequence))

    def skip(self, index: int) -> Deferred[int]:
        """
        Let no state machine apply the entry at which that of the leader has failed, see docs/machines.md.

        @return: fires with the index of the order in the log. Fails with L{DLedgerError}: refused, with a
            reason; or, as any change, without an answer.
        """
        return Deferred.fromCoroutine(self._commands.skip(whole("index", index, 0)))

    def begin_state(self, *, insists: bool = False) -> Deferred[int]:
        """
        Let the state of the group (producers and readers) begin anew, as no member has it any more, see
        docs/operations.md.

        @param insists: also if a member has it: then what it says is lost.
        @return: fires with the index of the order in the log. Fails with L{DLedgerError}: refused, with a
            reason; or, as any change, without an answer.
        """
        return Deferred.fromCoroutine(self._commands.order(BeginStateRequest(insists=insists)))

    def reset_times(self) -> Deferred[int]:
        """
        Let the times of a log that are ahead go on from the clocks of a majority, see docs/times.md.

        @return: as of L{begin_state}.
        """
        return Deferred.fromCoroutine(self._commands.order(ResetTimesRequest()))

    def query(self, query: BytesLike, *, max_age_s: float | None = None) -> Deferred[bytes]:
        """
        Ask the state machine of the group.

        @param max_age_s: any member may answer whose state is not older, see docs/machines.md. Without it,
            the leader answers from a state with all that was committed before this call.
        @return: fires with its answer. Fails with L{DLedgerError}: UNSUPPORTED (no machine),
            MACHINE_STOPPED, INTERNAL_ERROR (the machine has no answer, with its reason), or the last error
            before the deadline.
        """
        if max_age_s is not None:
            max_age_s = seconds("max_age_s", max_age_s, is_zero_allowed=True, most=MAX_AGE_S)
        return Deferred.fromCoroutine(query_machine(
            self._members, self._questions.leader, self._questions.any_member, query, max_age_s,
            clock=self._clock, timeout_s=self.options.timeout_s,
            answer_timeout_s=self.options.answer_timeout_s, is_closed=lambda: self._is_closed,
        ))

    def get(
        self, index: int, consistency: Consistency | str = Consistency.LINEARIZABLE
    ) -> Deferred[Entry]:
        """
        Read one entry.

        @param consistency: C{linearizable}: the leader answers, after it made sure that it leads;
            C{committed}: any member answers, and may lag behind. Java members support neither: a Java
            leader answers, also with entries that are not committed.
        @return: fires with the entry. Fails with L{NotYet<dledger.client.errors.NotYet>},
            L{Expired<dledger.client.errors.Expired>}, or the last error before the deadline:
            L{NotLeader<dledger.client.errors.NotLeader>},
            L{Timeout<dledger.client.errors.Timeout>}.
        @raise TypeError: C{index} is not a whole number. @raise ValueError: it is negative.
        """
        index = whole("index", index, hint="tail() counts a negative one back from the committed end")
        return Deferred.fromCoroutine(self._get(index, Consistency(consistency)))

    async def _get(self, index: int, consistency: Consistency) -> Entry:
        def request(member_id: str) -> Request:
            return GetRequest(
                group=self.group, remote_id=member_id, begin_index=index, consistency=consistency
            )

        at_leader = consistency is Consistency.LINEARIZABLE
        try:
            answer = await self._questions.ask(request, self.options.answer_timeout_s, at_leader=at_leader)
        except DLedgerError as error:
            raise failure_of(error.code, index=index, **error.facts) from None
        assert isinstance(answer, GetResponse)
        if answer.entries is None:  # Java's memory store
            raise failure_of(ResponseCode.INDEX_OUT_OF_RANGE, index=index)
        (entry,) = entries_of(answer.entries)
        if entry.kind is not OwnKind.TIME:
            before = await self._times.of(index, entry.term)
            (entry,) = entries_after(before, answer.entries)
        (entry,) = as_shown([entry], resets_of(timed_link(self._members)))
        return entry

    def last_sequence(self, producer: str) -> Deferred[LastSequence | None]:
        """
        Ask for the last sequence of a producer. It is that of the committed log: an append that is under way
        may still come after it.

        @return: fires with it; None: the log has never had one, the first is 0. Fails with
            L{ProducerForgotten<dledger.client.errors.ProducerForgotten>}: it may have had some; with
            L{DLedgerError}: FORBIDDEN, the producer is another account's; or the last error before the
            deadline.
        """
        problem = producer_problem(text("producer", producer), 0)
        if problem:
            return fail(failure_of(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem))
        return Deferred.fromCoroutine(self._last_sequence(producer))

    async def _last_sequence(self, producer: str) -> LastSequence | None:
        def request(member_id: str) -> Request:
            member = self._members.connected(member_id)
            if member is not None and not member.is_ours:
                raise DLedgerError(ResponseCode.UNSUPPORTED, member_id=member_id, reason=NO_PRODUCERS)
            return SequenceRequest(group=self.group, remote_id=member_id, producer=producer)

        try:
            answer = await self._questions.ask(request, self.options.answer_timeout_s, at_leader=True)
        except DLedgerError as error:
            if error.code is ResponseCode.UNKNOWN_PRODUCER:
                return None
            raise failure_of(error.code, producer=producer, **error.facts) from None
        assert isinstance(answer, SequenceResponse)
        return LastSequence(answer.last_sequence, answer.index)

    def tail(
        self,
        from_index: int = 0,
        follow: bool = False,
        *,
        timeout_s: float | None = None,
        batch_bytes_max: int = 1 << 20,
        control: bool = False,
        looks_back: bool = True,
    ) -> Tail:
        """
        Committed entries from C{from_index} on, as an asynchronous iterator.

        @param from_index: first index; a negative one counts back from the committed end.
        @param follow: read for ever; else end at the committed index of the start.
        @param timeout_s: fail after that many seconds without a serving member. Default: never when
            following, else the client's time-out.
        @param control: also show the log's own entries, such as the marks of appends
            that are made once (C{is_control}). They have indexes, so a tail without them skips these.
        @param looks_back: no: the first entries have a time only after the next time entry (docs/times.md).
        @raise TypeError, ValueError: a number is none, or out of range.
        """
        return self._opened(Tail(self._members, self._clock, checked_options(
            self.options, from_index, follow, timeout_s=timeout_s, batch_bytes_max=batch_bytes_max,
            control=control, looks_back=looks_back,
        )))

    def tail_batches(
        self, from_index: int = 0, follow: bool = False, *, timeout_s: float | None = None,
        batch_bytes_max: int = 1 << 20, control: bool = False,
    ) -> BatchTail:
        """
        As L{tail}, many entries at a time: a program that needs only bodies and indexes reads several times
        as many small entries per second.

        @return: an asynchronous iterator over L{TailBatch<dledger.client.tail_batch.TailBatch>}.
        @param batch_bytes_max: of the records in one batch, with 48 bytes of header each; one at least.
        """
        return self._opened(BatchTail(self._members, self._clock, checked_options(
            self.options, from_index, follow, timeout_s=timeout_s, batch_bytes_max=batch_bytes_max,
            control=control,
        )))

    def _opened(self, tail: _TailT) -> _TailT:
        self._tails.add(tail)
        return tail

    def reader(
        self, name: str, *, begin: Place = 0, share: int = 0, lease_s: float = 10.0, follow: bool = True,
        timeout_s: float | None = None, holder: str = "",
    ) -> NamedReader:
        """
        Read as a named reader: from the entry after the last one that a process of this name has committed,
        see docs/readers.md. No request is sent before the first entry is asked for.

        @param name: 1 to 64 bytes of UTF-8, printable.
        @param begin: where a reader begins that the group does not know: an index, or a negative number that
            counts the last entries of programs; C{"begin"}; C{"end"}: after the last entry; a time, see
            L{find_time}.
        @param share: 0: one process of this name reads, the others wait until its lease is over. Else each
            process has this many entries at a time (1 to 1,000,000), not in order between processes.
        @param lease_s: seconds after which another process may go on when this one is silent, 0.5 to 3600.
        @param follow: read for ever; else end at the committed index of the start.
        @param timeout_s: how long to wait while other processes have the entries. Default: for ever when
            following, else the client's time-out.
        @param holder: id of this process, for people; by default a random one. No two processes may have one.
        @raise DLedgerError: UNEXPECTED_ARGUMENT: the name or the holder is malformed.
        @raise TypeError, ValueError: a number is none, or out of range.
        """
        at = place("begin", begin)
        reader = NamedReader(
            ReaderCalls(self._commands.appends), partial(self.tail, follow=True, control=True),
            None if is_index(at) else partial(self._find_begin, at), ReaderOptions(
                name=text("name", name), begin=at if is_index(at) else 0,
                share=whole("share", share, 0, SHARE_MAX), lease_s=seconds("lease_s", lease_s), follow=follow,
                timeout_s=patience("timeout_s", timeout_s), holder=text("holder", holder),
            ),
        )
        self._readers.add(reader)
        return reader

    def readers(self) -> Deferred[tuple[ReaderInfo, ...]]:
        """@return: fires with the named readers of the group and their lag, by name."""
        return Deferred.fromCoroutine(ReaderCalls(self._commands.appends).infos())

    def move_reader(self, name: str, index: Place) -> Deferred[int]:
        """
        Put a named reader to an entry, forward or back; one that the group does not know begins there. The
        leases of its processes end.

        @param index: the next one that it reads; as C{begin} of L{reader}.
        @return: fires with that index. Fails with L{NotYet<dledger.client.errors.NotYet>}: beyond the
            end.
        """
        return Deferred.fromCoroutine(self._move_reader(text("name", name), place("index", index)))

    async def _move_reader(self, name: str, index: int | datetime) -> int:
        found = index if is_index(index) else await self._find_begin(index)
        return await ReaderCalls(self._commands.appends).move(name, found)

    @property
    def has_times(self) -> bool:
        """Whether a member that is connected has said that its log has times of leaders."""
        return timed_link(self._members) is not None

    def find_time(self, moment: datetime) -> Deferred[int]:
        """
        Find the entries of a time, by the times that leaders give them (docs/times.md), else clients
        (docs/envelopes.md).

        @param moment: with its zone.
        @return: fires with the index after the last entry that is known to be earlier, or of the begin of the
            log; by times of clients with that of an entry at most a minute earlier, which no clock that
            differs by less than a minute hides. Fails with UNSUPPORTED: no entry has a time.
        """
        return Deferred.fromCoroutine(self._find_begin(checked_time("moment", moment)))

    async def _find_begin(self, wanted: int | datetime) -> int:
        return await find_begin(self, wanted, self.options.timeout_s)

    def forget_reader(self, name: str) -> Deferred[None]:
        """Forget a named reader, which then holds no entry back any more. The leases of its processes end."""
        return Deferred.fromCoroutine(ReaderCalls(self._commands.appends).forget(text("name", name)))

    def status(self, deadline_s: float = 2.0) -> Deferred[tuple[MemberInfo, ...]]:
        """
        @return: fires, after C{deadline_s} seconds at most, with the status of each member, in order
            of ids; a member that does not answer has a C{problem}. Never fails.
        """
        return Deferred.fromCoroutine(self._members.ask_all(seconds("deadline_s", deadline_s)))

    def chain_marks(self, deadline_s: float = 2.0) -> Deferred[tuple[ChainMark, ...]]:
        """@return: fires with what each member holds at one committed index, see L{ask_chain_marks}."""
        deadline_s = seconds("deadline_s", deadline_s)
        return Deferred.fromCoroutine(ask_chain_marks(self._members, self._clock, deadline_s))

    def metadata(self) -> Deferred[MemberInfo]:
        """@return: fires with the leader's own status; fails if no leader answers in time."""
        return Deferred.fromCoroutine(self._questions.leader_info())

    @property
    def _changes(self) -> GroupChanges:
        return GroupChanges(
            members=self._members, find_leader=self._questions.leader,
            leader_info=self._questions.leader_info, clock=self._clock, timeout_s=self.options.timeout_s,
            answer_timeout_s=self.options.answer_timeout_s,
        )

    def transfer(self, to: str, *, term: int | None = None) -> Deferred[int]:
        """
        Hand leadership over to member C{to}.

        @param term: the leader's term; needed only for a Java leader, which does not report it.
        @return: fires with the new term, or the current one if C{to} leads already (-1 if the
            leader does not report it). Fails with
            L{DLedgerError}: UNKNOWN_MEMBER, FALL_BEHIND_TOO_MUCH, TAKE_LEADERSHIP_FAILED, ...;
            after NETWORK_ERROR or TIMEOUT the transfer may have happened.
        """
        term = None if term is None else whole("term", term, -1)
        return Deferred.fromCoroutine(self._changes.transfer(text("to", to), term))

    def change_members(
        self, change: str, member_id: str, address: str = "", *, is_dry: bool = False, is_forced: bool = False
    ) -> Deferred[MembershipResponse]:
        """
        Change the members of the group, see docs/membership.md.

        @param change: C{add} a learner at C{address}, C{promote} it to a voter, C{remove} a member, C{move} a
            member to C{address}.
        @param is_dry: only ask whether and what.
        @param is_forced: also if no quorum of the new members is known to be alive and caught up.
        @return: fires with the leader's answer, which is SUCCESS once the change is committed, or if it was
            in force already. It is asked again until the deadline while it cannot be made at the moment.
            Fails with L{UnknownChange<dledger.client.errors.UnknownChange>} if it may have been made,
            or may still be: give it again. Else with L{DLedgerError}: UNEXPECTED_ARGUMENT, UNSUPPORTED,
            FALL_BEHIND_TOO_MUCH, ... with the leader's reason.
        """
        return Deferred.fromCoroutine(self._changes.change(MembershipRequest(
            group=self.group, change=change, member_id=member_id, address=address, is_dry=is_dry,
            is_forced=is_forced,
        )))

    def close(self) -> None:
        """End all calls: appends in unanswered frames are unknown, the rest have failed."""
        if self._is_closed:
            return
        self._is_closed = True
        self._appender.close()
        self._commands.close()
        for reader in list(self._readers):
            reader.close()
        for tail in list(self._tails):
            tail.close()
        self._members.close()
