# -*- test-case-name: tests.sim.test_clients -*-
"""
Clients of a simulated group: the real L{LogClient} in a process of its own. They append, read and follow, and
record the answers.

Rule 1: an append is never sent twice by hand; without a certain answer its outcome is unknown.
Rule 2: every body is unique in a run.

Some calls go past the client to one member, whether it leads or not: so a deposed leader is asked as well.
Entries that a follower shows (committed reads, tails) may lag but must be in the log: they are compared at
once with the committed entries. Linearizable calls go to the history and are judged at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.internet.interfaces import IDelayedCall, IStreamClientEndpoint
from twisted.python.failure import Failure

from dledger.client.client import LogClient
from dledger.client.connection import MemberLink
from dledger.client.errors import AppendError
from dledger.client.members import Members
from dledger.client.tails import Tail
from dledger.client.values import Appended, Entry, entries_of
from dledger.testing.group.checks.history import Call, History
from dledger.testing.group.checks.require import require
from dledger.testing.group.sim_commands import SimCommands
from dledger.testing.group.watching.by_number import AskedByNumber, ByNumber
from dledger.testing.group.watching.outcomes import OUTCOMES
from dledger.testing.world.process import ProcessReactor, SimProcess
from dledger.testing.world.streams import StreamClient
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.entry import ENTRY_HEADER
from protocols.wire.ledger.messages import (
    AppendOnceRequest,
    AppendOnceResponse,
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    Request,
    Response,
)

if TYPE_CHECKING:
    from dledger.testing.group.members.cluster import SimCluster

_T = TypeVar("_T")

#: Answers of a member to an append after which the entry may be in the log.
_UNKNOWN = (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.TERM_CHANGED)

#: Longer than any C{max_wait_ack_time_ms} of a run: a slow commit is not a lost one.
ANSWER_S = 4.0


@attrs.frozen(kw_only=True)
class Load:
    """
    The load of a run.

    @ivar clients: number of clients.
    @ivar think_us: mean wait between two calls of one client.
    @ivar appends, gets, follows, submits, queries: weights of the kinds of calls.
    @ivar bodies_max: most bodies in one append.
    @ivar body_bytes_max: longest body.
    @ivar patience_us: a client gives up a call after this time.
    @ivar wander: share of calls that go to a random member instead of the leader.
    @ivar conditions: share of appends, of those with one body, that expect an end of the log.
    @ivar exact: share of clients that append exactly once.
    @ivar single: share of their appends, of those with one body, that have a producer of their own.
    @ivar poison: share of commands that stop every state machine.
    @ivar numbered: share of appends with numbers by hand, see L{ByNumber}.
    @ivar together: share of appends that are several at once, and share a turn of the leader.
    """

    clients: int = 3
    think_us: int = 600_000
    appends: float = 0.6
    gets: float = 0.25
    follows: float = 0.15
    bodies_max: int = 1
    body_bytes_max: int = 100
    wander: float = 0.05
    patience_us: int = 6_000_000
    conditions: float = 0.0
    exact: float = 0.0
    single: float = 0.0
    submits: float = 0.0
    queries: float = 0.0
    poison: float = 0.0
    numbered: float = 0.0
    together: float = 0.0


class SimClient:
    """
    One client: one call at a time, until C{is_stopped} is set.

    @ivar is_busy: a call has no outcome yet.
    @ivar kept: appends that expected an end, and were acknowledged.
    @ivar commands: to the state machine; None: the members have none.
    """

    is_dying = False

    def __init__(self, cluster: SimCluster, name: str, load: Load, rng: random.Random) -> None:
        self.name = name
        self.is_stopped = self.is_busy = False
        self._cluster = cluster
        self._history: History = cluster.history
        self._load = load
        self._rng = rng
        self._count = 0
        self._followed = 0
        self._highest = self.kept = 0
        self._habits = cluster.random(f"habits {name}")
        self._by_number = ByNumber(name, self._habits, self._body, others=cluster.random(f"others {name}"))
        self._is_exact = bool(load.exact) and self._rng.random() < load.exact
        total = load.appends + load.gets + load.follows + load.submits + load.queries
        self._append_below = load.appends / total
        self._get_below = self._append_below + load.gets / total
        self._submit_below = self._get_below + load.submits / total
        self._query_below = self._submit_below + load.queries / total
        rules = cluster.world.machines
        self.commands = None if rules is None else SimCommands(
            cluster, rules, name, cluster.random(f"commands {name}"), poison=load.poison,
            body_bytes_max=load.body_bytes_max,
        )
        self._process: SimProcess
        self._reactor: ProcessReactor
        self._client: LogClient
        self._members: Members
        self._boot()
        cluster.clients.append(self)

    def _boot(self) -> None:
        cluster, patience_s = self._cluster, self._load.patience_us / 1e6
        self._by_number.begin_anew()
        self._process = SimProcess(cluster.clock, self._rng, self)
        self._reactor = ProcessReactor(self._process)
        self._client = LogClient(
            cluster.addresses, reactor=self._reactor, wire=cluster.options.clients_wire, timeout_s=patience_s,
            answer_timeout_s=min(ANSWER_S, patience_s), endpoint_for=self._endpoint_for, rng=self._rng,
            exactly_once=self._is_exact,
        )
        self._members = Members(
            cluster.addresses, group=self._client.group, clock=self._reactor,
            wire=cluster.options.clients_wire, endpoint_for=self._endpoint_for, rng=self._rng,
        )

    def _endpoint_for(self, address: str) -> IStreamClientEndpoint:
        return StreamClient(self._cluster.network, self.name, self._process, address.partition(".")[0])

    def event_ended(self) -> None:
        """See L{dledger.testing.world.process.ProcessOwner.event_ended}."""
        self._cluster.bugs.notify()

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the calls."""
        self._wait()

    def kill(self) -> None:
        """Its process ends, with a call under way: the outcome stays unknown. Another one goes on."""
        self._process.end()
        self._cluster.network.died(self.name, self._process, silently=False)
        self.is_busy = False
        self._boot()
        self._wait()

    def _wait(self) -> None:
        think_us = int(self._load.think_us * 2 * self._rng.random())
        self._cluster.clock.after(think_us, self._process.run, self, self._next)

    def _next(self) -> None:
        if self.is_stopped:
            return
        self.is_busy = True
        chance = self._rng.random()
        if chance < self._append_below:
            self._append()
        elif chance < self._get_below:
            self._get()
        elif self.commands is not None and chance < self._submit_below:
            self._run(self.commands.submit(self._client), lambda _: None, Failure.raiseException)
        elif self.commands is not None and chance < self._query_below:
            self._run(self.commands.query(self._client), lambda _: None, Failure.raiseException)
        else:
            self._follow()

    def _ended(self, _: object) -> None:
        self.is_busy = False
        self._wait()

    def _run(
        self, call: Deferred[_T], reported: Callable[[_T], None], failed: Callable[[Failure], None]
    ) -> None:
        """Wait for a call, then think. An error in C{reported} or C{failed} is one of the checks."""
        call.addCallbacks(reported, failed).addCallbacks(self._ended, self._broken)

    def _broken(self, failure: Failure) -> None:
        assert failure.value is not None
        self._cluster.bugs.note(failure.value)

    @staticmethod
    def _expect(failure: Failure) -> None:
        """An error that a caller may see; a failed assertion is none."""
        if failure.check(AssertionError):
            failure.raiseException()

    def _stray(self) -> str | None:
        """A member that is asked past the client, if any is now."""
        if self._rng.random() >= self._load.wander:
            return None
        return self._rng.choice(sorted(self._members.addresses))

    async def _ask(self, member_id: str, request: Request) -> Response:
        link: MemberLink = await self._members.connection(member_id)
        return await link.ask(request, self._load.patience_us / 1e6)

    # -- appends ----------------------------------------------------------------------------------

    def _body(self) -> bytes:
        self._count += 1
        size = int(self._load.body_bytes_max * self._rng.random() ** 2)
        return f"{self.name}.{self._count}:".encode().ljust(size, b"x")

    def _append(self) -> None:
        leader, chance = self._cluster.leader, self._habits.random()
        if leader is not None and self._cluster.options.clients_wire != "remoting":
            if chance < self._load.numbered:
                return self._append_by_number(leader.member_id)
            if chance < self._load.numbered + self._load.together:
                return self._append_together(leader.member_id)
        bodies = tuple(self._body() for _ in range(1 + int(self._load.bodies_max * self._rng.random())))
        calls = [self._history.begin("append", client=self.name, body=body) for body in bodies]
        if len(bodies) == 1 and self._load.conditions and self._rng.random() < self._load.conditions:
            self._append_if(bodies[0], calls)
            return
        can_be_single = len(bodies) == 1 and self._is_exact and self._load.single
        if can_be_single and self._rng.random() < self._load.single:
            self._run(self._client.append(bodies[0], producer=f"{self.name}-{self._count}", sequence=0),
                      lambda appended: self._appended(calls, [appended]),
                      lambda failure: self._not_appended(calls, failure))
            return
        is_whole = self._cluster.options.clients_wire != "remoting" or len(bodies) == 1
        member_id = self._stray() if is_whole else None  # a remoting frame carries one body
        if member_id is None:
            self._run(self._client.append_many(bodies), lambda runs: self._appended(calls, runs),
                      lambda failure: self._not_appended(calls, failure))
            return
        request = AppendRequest(group=self._client.group, remote_id=member_id, bodies=bodies)
        self._run(Deferred.fromCoroutine(self._ask(member_id, request)),
                  lambda answer: self._answered(calls, answer), lambda failure: self._lost(calls, failure))

    def _append_if(self, body: bytes, calls: list[Call]) -> None:
        """Expect the end that is known to be committed, which others may have passed."""
        expected_end = self._cluster.invariants.last_committed

        def reported(appended: Appended) -> None:
            between = range(expected_end + 1, appended.index)
            is_next = all(map(self._cluster.invariants.is_hidden, between))
            require(expected_end < appended.index and is_next, 7,
                    f"{self.name} appended after {expected_end}, and is at {appended.index}")
            self.kept += 1
            self._appended(calls, [appended])

        self._run(self._client.append(body, expected_end=expected_end), reported,
                  lambda failure: self._not_appended(calls, failure))

    def _append_by_number(self, member_id: str) -> None:
        asked, era = self._by_number.draw(), self._history.era
        is_new = not (asked.is_repeat or asked.is_early)
        bodies = asked.bodies if is_new else ()
        calls = [self._history.begin("append", client=self.name, body=body) for body in bodies]
        request = AppendOnceRequest(group=self._client.group, remote_id=member_id, producer=asked.producer,
                                    sequence=asked.sequence, bodies=asked.bodies)

        def reported(answer: Response) -> None:
            if era == self._history.era:
                self._reported_by_number(asked, calls, answer)
            else:  # (what was acknowledged may be lost)
                self._by_number.begin_anew()
                self._lose(calls)

        def failed(failure: Failure) -> None:
            self._by_number.begin_anew()
            self._lost(calls, failure)

        self._run(Deferred.fromCoroutine(self._ask(member_id, request)), reported, failed)

    def _reported_by_number(self, asked: AskedByNumber, calls: list[Call], answer: Response) -> None:
        assert isinstance(answer, AppendOnceResponse), answer
        self._by_number.answered(asked, answer)
        if calls:
            self._answered(calls, answer)
        elif answer.code is ResponseCode.SUCCESS:
            self._is_at(Appended(index=answer.index, term=answer.term, pos=answer.pos, count=answer.count,
                                 offset=0))
        if answer.code in (*_UNKNOWN, ResponseCode.UNKNOWN_PRODUCER, ResponseCode.SEQUENCE_FORGOTTEN):
            self._by_number.begin_anew()

    def _append_together(self, member_id: str) -> None:
        waits = []
        for _ in range(self._habits.randint(2, 4)):
            bodies = tuple(self._body() for _ in range(self._habits.randint(1, 3)))
            calls = [self._history.begin("append", client=self.name, body=body) for body in bodies]
            request = AppendRequest(group=self._client.group, remote_id=member_id, bodies=bodies)
            waits.append(Deferred.fromCoroutine(self._ask(member_id, request)).addCallbacks(
                partial(self._answered, calls), partial(self._lost, calls)))
        self._run(gatherResults(waits, consumeErrors=True), lambda _: None, _raise_first)

    def _appended(self, calls: list[Call], runs: Iterable[Appended]) -> None:
        for run in runs:
            self._is_at(run)
            self._highest = max(self._highest, run.index + run.count - 1)
            for at in range(run.count):
                self._history.end(calls[run.offset + at], "ok", index=run.index + at)

    def _is_at(self, run: Appended) -> None:
        """Term and position are those of the entry, as far as they are known."""
        invariants = self._cluster.invariants
        term = invariants.committed.get(run.index)
        if term is None or run.term < 0 or self._cluster.history.era:
            return  # (the entry was lost since; or it has expired, and was found again by its producer)
        pos = ENTRY_HEADER.unpack_from(invariants.records[run.index, term][0])[4]
        require(run.term == term and run.pos in (-1, pos), OUTCOMES,
                f"{self.name} appended {run}; the entry is of t{term} at {pos}")

    def _not_appended(self, calls: list[Call], failure: Failure) -> None:
        error = failure.value
        assert isinstance(error, AppendError), error
        self._appended(calls, error.appended)
        reported = sum(run.count for run in error.appended) + error.failed + error.unknown
        require(reported == len(calls), 7,
                f"{self.name} appended {len(calls)} bodies, heard {reported}: {error}")
        # A call does not say which bodies are unknown, only how many.
        for call in calls:
            if call.outcome != "ok":
                self._history.end(call, "unknown" if error.unknown else "failed")

    def _answered(self, calls: list[Call], answer: Response) -> None:
        assert isinstance(answer, AppendResponse)
        if answer.code is ResponseCode.SUCCESS:
            require(answer.count == len(calls), 7, f"{self.name} appended {len(calls)}, heard {answer.count}")
            self._appended(calls, [Appended(index=answer.index, term=answer.term, pos=answer.pos,
                                            count=answer.count, offset=0)])
            return
        for call in calls:
            self._history.end(call, "unknown" if answer.code in _UNKNOWN else "failed")

    def _lost(self, calls: list[Call], failure: Failure) -> None:
        self._expect(failure)
        self._lose(calls)

    def _lose(self, calls: list[Call]) -> None:
        for call in calls:
            self._history.end(call, "unknown")

    # -- reads ------------------------------------------------------------------------------------

    def _get(self) -> None:
        known = max(self._highest, self._cluster.invariants.last_committed)
        index = int(self._rng.random() * (known + 3))
        if self._rng.random() < 0.5:
            index = max(known - int(self._rng.random() * 3) + 1, 0)
        call = self._history.begin("get", client=self.name, index=index)
        member_id = self._stray()
        if member_id is None:
            self._run(self._client.get(index), lambda entry: self._history.end(call, "ok", body=entry.body),
                      lambda failure: self._not_read(call, failure))
            return
        request = GetRequest(
            group=self._client.group, remote_id=member_id, begin_index=index,
            consistency=Consistency.LINEARIZABLE,
        )
        self._run(Deferred.fromCoroutine(self._ask(member_id, request)),
                  lambda answer: self._read(call, answer), lambda failure: self._not_read(call, failure))

    def _not_read(self, call: Call, failure: Failure) -> None:
        self._expect(failure)
        code = getattr(failure.value, "code", None)
        self._history.end(call, "beyond" if code is ResponseCode.INDEX_OUT_OF_RANGE else "failed")

    def _read(self, call: Call, answer: Response) -> None:
        assert isinstance(answer, GetResponse)
        if answer.code is ResponseCode.SUCCESS and answer.entries is not None:
            (entry,) = entries_of(answer.entries)
            self._history.end(call, "ok", body=entry.body)
        else:
            beyond = answer.code is ResponseCode.INDEX_OUT_OF_RANGE
            self._history.end(call, "beyond" if beyond else "failed")

    def _follow(self) -> None:
        """Read on where the last call ended, at any member."""
        era = self._cluster.history.era
        if self._rng.random() < 0.3:
            index = int(self._rng.random() * (self._cluster.invariants.last_committed + 1))
            self._run(self._client.get(index, Consistency.COMMITTED), lambda entry: self._shown([entry], era),
                      self._expect)
            return
        first = self._followed
        tail = self._client.tail(first, follow=True, control=True)
        patience_s = min(self._load.patience_us / 1e6, 2.0)
        give_up = self._reactor.callLater(patience_s, tail.close)

        def reported(entries: list[Entry]) -> None:
            require(not entries or entries[0].index == first, 4, f"{self.name} asked for {first}")
            self._shown(entries, era)
            self._followed = first + len(entries)
            self._leave(tail, give_up)

        def failed(failure: Failure) -> None:
            self._leave(tail, give_up)
            self._expect(failure)
            error = failure.value
            if isinstance(error, DLedgerError):
                self._followed = max(self._followed, int(str(error.facts.get("first_index", 0))))

        self._run(tail.next_batch(), reported, failed)

    def _leave(self, tail: Tail, give_up: IDelayedCall) -> None:
        tail.close()
        if give_up.active():
            give_up.cancel()

    def _shown(self, entries: list[Entry], era: int) -> None:
        invariants = self._cluster.invariants
        if era != self._cluster.history.era:
            return  # they may have been lost since
        for entry in entries:
            at = entry.index
            require(at in invariants.committed and invariants.body_of(at) == entry.body, 4,
                    f"{self.name} was shown an entry at {at} that is not committed")
            require(entry.term == invariants.committed[at], OUTCOMES,
                    f"{self.name} was shown {at} of t{entry.term}, not of t{invariants.committed[at]}")


def _raise_first(failure: Failure) -> None:
    """One of several calls failed. @raise Exception: its error."""
    assert isinstance(failure.value, FirstError), failure
    failure.value.subFailure.raiseException()
