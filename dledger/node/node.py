# -*- test-case-name: tests.node.test_node -*-
"""
One member in this process: the core, its driver, and the parts around them::

    connections -> RequestRouter -> AppendGate, Reads, or the core
    core -> Driver -> connections, Peers, AppendGate, Reads, LedgerFlusher

The node makes no decisions: it gathers inputs, passes them on, and answers callers. Its only
LoopingCall makes the ticks.

Rule 1: the linearizable reads of a turn are one input; appends are gathered by L{AppendGate}.
Rule 2: when the member stops, for any reason, every waiting caller is answered, after the last step
of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.tls.key_watch import KeyWatch
from dledger.base.tls.securing import MembersDialling, Securing
from dledger.core.driver import Driver, Ledger, Surroundings, Terms
from dledger.core.replica import DLedgerCore
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import MemberState
from dledger.node.belonging import Belonging
from dledger.node.broker_hooks import Embedding
from dledger.node.connections.greeting import Greeting
from dledger.node.connections.peers import Peers
from dledger.node.connections.server import MemberServer
from dledger.node.handlers import Handlers
from dledger.node.host import MemberHost, NodeFiles
from dledger.node.life import MemberLife
from dledger.node.maintenance import MemberMaintenance
from dledger.node.reporting.reports import Reports, SeenEvent
from dledger.node.reporting.status import Counters, NodeStatus
from dledger.node.requests.about import AboutMember, connections_status, peers_status
from dledger.node.requests.appends import AppendResult
from dledger.node.requests.entry_times import notes_times
from dledger.node.requests.machine_requests import MachineRequests
from dledger.node.requests.router import RequestRouter
from dledger.node.work.contacts import Contacts
from dledger.node.work.flush import LedgerFlusher
from dledger.node.work.inside import MemberInside
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.messages import (
    BeginStateRequest,
    ResetTimesRequest,
    Response,
)
from protocols.wire.ledger.own.time_entries import TimeReset, encode_resets

#: Seconds between two checks of connections and waiters.
SWEEP_INTERVAL_S = 0.2

#: A reactor stall of at least this many seconds is logged.
STALL_WARNING_S = 0.25

#: Makes the driver of a core.
MakeDriver = Callable[[DLedgerCore, Ledger, Terms, Surroundings], Driver]


class Node:
    """
    Implements L{dledger.core.driver.Surroundings}: what is asked often, its parts do themselves.

    @ivar about: informs others about the member.
    @ivar core, driver: the algorithm, to read only, and the driver, which takes every input of it.
    @ivar counters: counts since the start.
    @ivar handlers: the parts that answer requests.
    @ivar dialling: connects to the other members by TLS; None without TLS.
    @ivar flusher: runs the fsyncs.
    @ivar keys: for TLS; None without.
    @ivar turn: runs work once per reactor turn; shared by server and peers.
    """

    log = Logger()

    def __init__(
        self,
        *,
        config: DLedgerConfig,
        files: NodeFiles,
        host: MemberHost,
        make_driver: MakeDriver = Driver,
        keys: Securing | None = None,
        embedding: Embedding | None = None,
    ) -> None:
        """
        @param make_driver: the simulator's driver checks each step.
        @param keys: for TLS, watched here.
        @param embedding: the program that alone appends.
        """
        self.config = config
        self.counters = Counters()
        self.keys = keys
        self.dialling = None if keys is None else MembersDialling(keys, config.tls_plain_members)
        self.turn = Turn(host.clock, self._turn_failed)
        self._life = MemberLife(host.clock)
        self._reports = Reports(
            self.log, self_id=config.self_id, counts=self.counters.reports, seconds=host.clock.seconds,
            wall_clock=host.wall_clock,
        )
        self._store = store = files.store
        self._clock = host.clock
        self._wall_clock = host.wall_clock
        self.seconds = host.clock.seconds
        self._embedding = embedding
        self._peers: Peers | None = None
        self.send_request: Callable[[fx.SendRequest], None] = _not_connected
        self._server: MemberServer | None = None
        self._next_sweep_s = 0.0
        self.core = DLedgerCore(
            config=config, view=store, rng=host.rng, recovered=files.recovered,
            term_start_body=embedding.stamps.term_start_body if embedding is not None else b"",
        )
        self.driver = make_driver(self.core, store, files.terms, self)
        inside = MemberInside(
            config=config, store=store, core=self.core, driver=self.driver, counters=self.counters,
            seconds=host.clock.seconds, wall_s=lambda: host.wall_clock()[0], reporter=self,
        )
        self._belonging = Belonging(
            config, self.core.member, store, host.rng, inside.feed, self._members_changed, self.note
        )
        self.flusher = LedgerFlusher(
            store=store, run_in_thread=host.run_in_thread, feed=inside.feed, seconds=inside.seconds,
            counters=self.counters, report=self.report,
        )
        self.about = AboutMember(
            self.status, lambda: self.machine_requests.reported(), lambda: self.has_times,
            lambda: encode_resets(self.time_resets), lambda: self.handlers.state_digests.reported,
        )
        self.handlers: Handlers = Handlers(
            inside, self.turn, self._belonging, reported=self.about.reported, embedding=embedding
        )
        self.reply = self.handlers.router.questions.reply
        self.answer_append = self.handlers.appends.answered
        self.answer_read = self.handlers.reads.answered
        self.start_flush = self.flusher.start
        self.committed = self.handlers.committed
        watch = KeyWatch(keys, f"member {config.self_id}", member_id=config.self_id)
        self._maintenance = MemberMaintenance(inside, host, files.terms, self.handlers, watch, self.log)

    # -- life ---------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """See L{MemberLife}."""
        return self._life.state

    @property
    def reason(self) -> str:
        """Why it ended; empty if it has not."""
        return self._life.reason

    def connect(self, *, peers: Peers, server: MemberServer) -> None:
        """Set the connections; must precede L{start}."""
        self._peers = peers
        self._server = server
        self.send_request = peers.send
        self._belonging.connect(peers, server)
        peers.follow(self.contacts.addresses)
        self.handlers.snapshots.connect(peers)
        self.router.claim_with(server.claim, partial(self._belonging.vouches, peers), server)

    def start(self) -> None:
        """Start the tick and feed the core its first input."""
        assert self._peers is not None and self._server is not None, "connect first"
        if self.state != "starting":
            return
        self._life.run(self._tick, self.config.tick_ms, self._tick_failed)
        self._maintenance.keep()
        self.driver.feed(ev.Started())

    def reread(self, config: DLedgerConfig) -> None:
        """Go on with these options. @param config: from L{dledger.node.changing.with_changes}."""
        self.config = config
        if self.state == "running":
            self._maintenance.reread(config)

    def stop(self) -> Deferred[None]:
        """
        Hand leadership over, answer pending requests, then stop.

        @return: fires when the member has stopped. This may take arbitrarily long: see L{abort}.
        """
        ended = self.when_ended()
        if self.state == "running":
            self._life.state = "stopping"
            self.driver.feed(ev.StopRequested())
        elif self.state == "starting":
            self._end("stopped", "asked to stop before it started")
        return ended

    def abort(self, reason: str) -> None:
        """Stop now. Proposed appends end with an unknown outcome, the others were not stored."""
        if not self._life.is_over:
            self._end("failed", reason)

    def when_ended(self) -> Deferred[None]:
        """@return: fires when the member has stopped, for any reason (see C{state}, C{reason})."""
        return self._life.when_ended()

    def _end(self, state: str, reason: str) -> None:
        self.driver.stop()
        self._life.end(state, reason)
        self.turn.work(self._notify_ended)  # (The driver may be in the middle of a step.)

    def _notify_ended(self) -> None:
        self._life.stop_ticking()
        self.handlers.stop()
        self._life.notify()

    def _tick(self, ticks: int) -> None:
        stall_s = self.counters.stalled(ticks - 1, self.config.tick_ms)
        if stall_s >= STALL_WARNING_S:
            self.log.warn("reactor stalled for {stall_s:.3f} s", stall_s=stall_s, self_id=self.config.self_id)
        self.driver.feed(ev.Ticked(clock_ms=max(int(self._wall_clock()[0] * 1000), 0)))
        now_s = self._clock.seconds()
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_INTERVAL_S
            self._sweep(now_s)
        self._maintenance.tick(now_s)

    def _tick_failed(self, failure: Failure) -> None:
        self.log.failure("tick failed; stopping member {self_id}", failure, self_id=self.config.self_id)
        self.abort(f"tick failed: {failure.getErrorMessage()}")

    def _sweep(self, now_s: float) -> None:
        assert self._peers is not None and self._server is not None
        self._peers.sweep(now_s)
        self._server.sweep(now_s)
        self.handlers.sweep(now_s)
        self._reports.sweep(now_s)
        self.about.sweep()

    # -- its parts ------------------------------------------------------------------------------

    @property
    def router(self) -> RequestRouter:
        """Receives the requests of connections."""
        return self.handlers.router

    @property
    def machine_requests(self) -> MachineRequests:
        """The place of a state machine, and the handler of the requests to it."""
        return self.handlers.machine

    @property
    def greeting(self) -> Greeting:
        """Judges which members belong to this group."""
        return self._belonging.greeting

    @property
    def contacts(self) -> Contacts:
        """The members to which it connects."""
        return self._belonging.contacts

    def events(self) -> tuple[SeenEvent, ...]:
        """The last events, oldest first, see L{Reports.events}."""
        return self._reports.events()

    # -- calls from this process ----------------------------------------------------------------

    @property
    def members(self) -> MemberState:
        """The group and the ledger, as the core knows them; to read only."""
        return self.core.member

    @property
    def is_running(self) -> bool:
        """Whether the driver still takes inputs."""
        return not self.driver.is_stopped

    @property
    def committed_index(self) -> int:
        """Highest index known to be committed, inclusive."""
        return self.core.committed_index

    @property
    def is_leader(self) -> bool:
        """Whether this member leads."""
        return self.core.member.is_leader

    @property
    def term(self) -> int:
        """Current term of this member."""
        return self.core.member.term

    @property
    def is_settled_leader(self) -> bool:
        """Whether this member leads, and all its entries are committed: none of an earlier term is lost."""
        core = self.core
        return core.member.is_leader and core.committed_index == core.ledger_end_index

    @property
    def leader_id(self) -> str | None:
        """Leader of the current term, if known."""
        return self.core.leader_id

    def append(self, bodies: bytes | Iterable[bytes]) -> Deferred[AppendResult]:
        """
        Append one body, or several as consecutive entries, and wait until a majority holds them.

        Source: handleAppend in DLedgerServer.java; differs: docs/divergence.md.

        @param bodies: each 0 to C{config.body_bytes_max} bytes, stored as given.
        @return: fires with index, term and position of the first entry. Fails with L{DLedgerError}:
            C{NOT_LEADER} (facts name the leader if known), C{LEADER_PENDING_FULL}, C{DISK_FULL},
            C{LEADER_TRANSFERRING}, C{REQUEST_WITH_EMPTY_BODYS}, C{UNEXPECTED_ARGUMENT} (a body is too large):
            not in the log. C{WAIT_QUORUM_ACK_TIMEOUT}, C{TERM_CHANGED}: may
            still commit. Cancelling stops the wait, not the append.
        """
        several = (bodies,) if isinstance(bodies, bytes) else tuple(bodies)
        if not several:
            return fail(DLedgerError(ResponseCode.REQUEST_WITH_EMPTY_BODYS))
        longest = max(map(len, several))
        if longest > self.config.body_bytes_max:
            return fail(DLedgerError(
                ResponseCode.UNEXPECTED_ARGUMENT, body_bytes=longest, allowed=self.config.body_bytes_max
            ))
        if self.driver.is_stopped:
            return fail(DLedgerError(ResponseCode.NOT_LEADER, reason=self.reason or "the member has stopped"))
        return self.handlers.appends.append(several)

    def read(self, index: int) -> Deferred[bytes]:
        """
        Read the body at C{index}, linearizably; at the leader only.

        @return: fires with the body. Fails with L{DLedgerError}: C{NOT_LEADER},
            C{INDEX_OUT_OF_RANGE} (not committed), C{INDEX_LESS_THAN_LOCAL_BEGIN} (deleted).
        """
        return self.handlers.reads.read(index)

    def wait_for(self, index: int, *, time_out_ms: int) -> Deferred[int]:
        """
        Wait until this member knows that C{index} is committed.

        @return: fires with the committed index; it is lower than C{index} if C{time_out_ms} passed first, or
            the member stops.
        """
        return self.handlers.reads.wait_for(index, time_out_ms)

    @property
    def has_times(self) -> bool:
        """Whether its log has time entries, or will have."""
        return notes_times(self.config, self._store)

    @property
    def time_resets(self) -> tuple[TimeReset, ...]:
        """The resets of these times, see L{TimeNote}."""
        group = self._store.group
        return () if group is None or group.state.time is None else group.state.time.resets

    def read_committed(self, first_index: int, *, max_bytes: int) -> EntryBatch | None:
        """
        Records from C{first_index} on that this member knows to be committed; None if there are none.

        @raise DLedgerError: C{INDEX_LESS_THAN_LOCAL_BEGIN}, the entry was deleted.
        @raise StoreError: the records cannot be read.
        """
        if first_index > self.core.committed_index:
            return None
        begin_index = self._store.ledger_begin_index
        if first_index < max(begin_index, 0):
            raise DLedgerError(
                ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, index=first_index, ledger_begin_index=begin_index
            )
        end_index = self.core.committed_index
        return self._store.read_range(first_index, end_index=end_index, max_bytes=max_bytes)

    def skip(self, index: int) -> Deferred[Response]:
        """Order that no state machine applies an entry. @return: fires with the answer, with any code."""
        return self.machine_requests.skip(index)

    def begin_state(self, *, insists: bool = False) -> Deferred[Response]:
        """Order that the state of the group begins anew. @return: fires with the answer, with any code."""
        return self.handlers.state_orders.begin_anew(BeginStateRequest(insists=insists))

    def reset_times(self) -> Deferred[Response]:
        """Order that times go on from the clocks of a majority. @return: fires with any code."""
        return self.handlers.time_orders.reset(ResetTimesRequest())

    def ask_snapshot(self) -> str:
        """Let the state machine take a snapshot. @return: why it takes none; empty if it does."""
        return self.machine_requests.ask_snapshot()

    def transfer(self, transferee_id: str) -> Deferred[Response]:
        """Hand leadership to C{transferee_id}. @return: fires with the answer, with any code."""
        return self.handlers.transfer(transferee_id)

    def status(self) -> NodeStatus:
        """The current status."""
        member = self.core.status()
        return NodeStatus(
            member=member, listen=self.about.listen, admin=self.about.admin, state=self.state,
            reason=self.reason, uptime_s=self._life.uptime_s, counts=self.counters.status(),
            connections=connections_status(self._server, self._peers),
            peers=peers_status(member, self._store, self._peers, self.contacts.members),
            store=self._maintenance.status(member), pull_waiters=self.handlers.reads.waiters,
            healthy_lag_entries=self.config.healthy_lag_entries,
            tls_expires_s=self._maintenance.tls_expires_s,
            machine=self.handlers.snapshots.with_log_kept(self.machine_requests.status()),
            readers=self.handlers.readers.infos(), reader_count=self.handlers.readers.count,
            why_state_unknown=self.handlers.group_fetch.why_unknown,
            times_ahead_ms=self.handlers.time_orders.ahead_ms,
        )

    # -- Surroundings of the driver -------------------------------------------------------------

    def follow_membership(self, _effect: fx.FollowMembership) -> None:
        self._members_changed()
        if self._peers is not None:
            self._peers.greet()

    def _members_changed(self) -> None:
        if self._peers is not None:
            self._peers.follow(self.contacts.addresses)
        self.router.access.forget()

    def continue_later(self, _effect: fx.ContinueLater) -> None:
        self._clock.callLater(0, self.driver.feed, ev.TurnCame())

    def note(self, event: str, facts: Mapping[str, object]) -> None:
        """An event on the connections that another party can repeat; for L{MemberServer} and the router."""
        self._reports.report(fx.Report(event=event, facts=facts))

    def report(self, report: fx.Report) -> None:
        is_role = report.event == "role-changed"
        if is_role and self._embedding is not None:
            self._embedding.role_changed()
        if is_role:
            self.counters.roles.note(report.facts.get("role"), report.facts.get("leader_id"))
        self._reports.report(report)

    def stop_member(self, stop: fx.StopMember) -> None:
        if not stop.clean:
            self.log.critical(
                "member {self_id} stops: {reason}", self_id=self.config.self_id, reason=stop.reason
            )
        self._end("stopped" if stop.clean else "failed", stop.reason)

    def broken(self, error: BaseException) -> None:
        failure = Failure(error)
        self.log.failure("member {self_id} stops because of a bug", failure, self_id=self.config.self_id)
        if not self._life.is_over:
            self._end("failed", f"{type(error).__name__}: {error}")

    def _turn_failed(self, failure: Failure) -> None:
        assert failure.value is not None
        self.broken(failure.value)


def _not_connected(_effect: fx.SendRequest) -> None:
    raise AssertionError("connect first")
