# -*- test-case-name: tests.node.test_node -*-
"""
One member in this process: the core, its driver, and the parts around them::

    connections -> RequestRouter -> AppendGate, Reads, or the core
    core -> Driver -> Node (as L{dledger.driver.driver.Surroundings}) -> connections, peers, flush thread

The node makes no decisions: it gathers inputs, passes them on, and answers callers. Its only
LoopingCall makes the ticks.

Rule 1: the linearizable reads of a turn are one input; appends are gathered by L{AppendGate}.
Rule 2: when the member stops, for any reason, every waiting caller is answered, after the last step
of the driver.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.disk.disk import DiskSpace
from dledger.base.process.threads import RunInThread
from dledger.base.tls.key_watch import KeyWatch
from dledger.base.tls.securing import MembersDialling, Securing
from dledger.core.replica import DLedgerCore
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import MemberState
from dledger.driver.driver import Driver, Ledger, Surroundings, Terms
from dledger.ledger.config import DLedgerConfig
from dledger.ledger.membership import Membership
from dledger.node.belonging import Belonging
from dledger.node.broker_hooks import Embedding
from dledger.node.connections.peers import Peers
from dledger.node.connections.server import MemberServer
from dledger.node.house_keeping import MemberHouse
from dledger.node.reporting.health import told_health
from dledger.node.reporting.reports import Reports
from dledger.node.reporting.status import Counters, NodeStatus, bytes_behind
from dledger.node.requests.appends import AppendGate, AppendResult
from dledger.node.requests.machine_requests import MachineDesk
from dledger.node.requests.readers import ReaderDesk
from dledger.node.requests.router import NO_APPENDS, Refusals, RequestRouter, Told
from dledger.node.requests.snapshots import SnapshotDesk
from dledger.node.run.aside_watch import AsideWatch
from dledger.node.run.flush import LedgerFlusher
from dledger.node.run.keeping import keep_from_index
from dledger.node.run.reads import Reads
from dledger.node.run.scrubbing import Scrubbing
from dledger.node.run.store import Store
from dledger.storage.files.term_file import TermVote
from dledger.values.errors import DLedgerError, StoreError
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.messages import LeadershipTransferRequest, Request, Response

#: Seconds between two checks of connections and waiters.
SWEEP_INTERVAL_S = 0.2

#: Seconds between two checks of disk space and expired files.
HOUSE_KEEPING_INTERVAL_S = 10.0

#: The same while the disk is full.
FULL_CHECK_INTERVAL_S = 1.0

#: A reactor stall of at least this many seconds is logged.
STALL_WARNING_S = 0.25

#: Makes the driver of a core.
MakeDriver = Callable[[DLedgerCore, Ledger, Terms, Surroundings], Driver]


class Node:
    """
    Invariant: C{state} is C{starting}, C{running}, C{stopping}, then C{stopped} or C{failed}; states may be
    skipped, and none comes back.

    @ivar router: receives the requests of connections.
    @ivar refusals: answers requests that are refused.
    @ivar turn: runs work once per reactor turn; shared by server and peers.
    @ivar greeting: judges which members belong to this group.
    @ivar admin: listening address of the HTTP administration, for people; empty without one.
    @ivar dialling: connects to the other members by TLS; None without TLS.
    @ivar told_admin: C{host:port} of it for the other members; empty if they cannot ask there.
    @ivar desk, reader_desk: answer the requests to the state machine, if there is one, and of readers.
    @ivar snapshot_desk: exchanges snapshots with other members.
    @ivar counters: counts since the start.
    @ivar events: returns the last events, see L{Reports.events}. @ivar keys: for TLS; None: without.
    """

    log = Logger()

    def __init__(
        self,
        *,
        config: DLedgerConfig,
        store: Store,
        terms: Terms,
        vote: TermVote,
        clock: IReactorTime,
        rng: random.Random,
        run_in_thread: RunInThread,
        wall_clock: Callable[[], tuple[float, int]],
        disk_space: Callable[[], DiskSpace] | None = None,
        make_driver: MakeDriver = Driver,
        keys: Securing | None = None,
        embedding: Embedding | None = None,
    ) -> None:
        """
        @param clock: monotonic.
        @param run_in_thread: runs fsyncs, one at a time.
        @param wall_clock: seconds since 1970, and the local hour.
        @param make_driver: the simulator's driver checks each step.
        @param keys, embedding: for TLS, watched here; the program that alone appends.
        """
        self.config, self.counters = config, Counters()
        self._reports = Reports(
            self.log, self_id=config.self_id, counts=self.counters.reports, seconds=clock.seconds,
            wall_clock=wall_clock,
        )
        self.events = self._reports.events
        self.turn = Turn(clock, self._turn_failed)
        self.state, self.reason, self.listen = "starting", "", ""
        self.admin = self.told_admin = self._begin_moved = ""
        self._store, self._terms, self._rng = store, terms, rng
        self._clock, self._embedding, self.keys = clock, embedding, keys
        self._wall_clock, self._disk_space = wall_clock, disk_space
        self.dialling = None if keys is None else MembersDialling(keys, config.tls_plain_members)
        self._key_watch = KeyWatch(keys, f"member {config.self_id}", member_id=config.self_id)
        self._space: DiskSpace | None = None
        self._house = MemberHouse(config.self_id, store, self.counters, self.log)
        self._aside = AsideWatch(store, self.log, config.self_id)
        self._started_s, self._tokens = clock.seconds(), 0
        self._peers: Peers | None = None
        self._server: MemberServer | None = None
        self._ended: list[Deferred[None]] = []
        self._told: Told | None = None
        self._ticking: LoopingCall | None = None
        self._next_sweep_s = self._next_house_keeping_s = 0.0
        self._next_check_point_s = self._started_s + config.check_point_interval / 1000
        self._core = DLedgerCore(
            config=config, view=store, rng=rng, term=vote.term, voted_for=vote.voted_for,
            committed_index=store.committed_index, repair_end_index=store.repair_end_index,
            is_unsure=store.identity.is_unsure, forgot_terms=store.identity.forgot_terms,
            group_name=store.identity.group_name,
            term_start_body=embedding.stamps.term_start_body if embedding is not None else b"",
        )
        self._driver = make_driver(self._core, store, terms, self)
        self._gather(store, run_in_thread)

    def _gather(self, store: Store, run_in_thread: RunInThread) -> None:
        config, feed = self.config, self._driver.feed
        self._belonging = Belonging(
            config, self._core.members, store, self._rng, feed, self._members_changed, self.note
        )
        self.greeting, self.contacts = self._belonging.greeting, self._belonging.contacts
        self.flusher = LedgerFlusher(
            store=store, run_in_thread=run_in_thread, feed=feed, seconds=self._clock.seconds,
            counters=self.counters, report=self.report,
        )
        self._scrubbing = Scrubbing(config, store, self._clock.seconds, self.counters, self.log)
        self.refusals = Refusals(self._core, feed, self.counters)
        self._appends = AppendGate(
            group=config.group, ledger=store, propose=feed, at_end_of_turn=self.turn.work,
            at_end_of_read=self.turn.soon, seconds=self._clock.seconds,
            next_token=self._next_token, counters=self.counters,
            shared_count_max=max(1, min(64, config.max_pending_requests_num // 16)),
        )
        self._reads = Reads(
            group=config.group, store=store, committed_index=lambda: self._core.committed_index,
            request_reads=feed, at_end_of_turn=self.turn.work, next_token=self._next_token,
            seconds=self._clock.seconds, refuse=self.refusals.refuse, counters=self.counters,
        )
        self.desk = MachineDesk(
            config, append=self._appends.append_command, read_index=self._reads.read_index,
            status=self._core.status, producers=lambda: store.producers, now_ms=self.now_ms,
            append_order=self._appends.append_control, broken=self.broken, counters=self.counters,
            others=lambda: self.snapshot_desk, feed=feed, note=self.note,
        )
        self.snapshot_desk = SnapshotDesk(
            config=config, members=self._core.members, machine=lambda: self.desk.machine, now_ms=self.now_ms,
            counters=self.counters,
        )
        self.reader_desk = ReaderDesk(
            config=config, ledger=store, core=self._core, reads=self._reads, now_ms=self.now_ms,
            append=self._appends.append_control, broken=self.broken, counters=self.counters,
            is_refused=self._embedding is not None,
        )
        self.router = RequestRouter(
            self_id=config.self_id, group=config.group,
            body_bytes_max=config.body_bytes_max if self._embedding is None else NO_APPENDS,
            core=self._core, feed=feed, is_running=lambda: not self._driver.is_stopped, broken=self.broken,
            report=self._reports.report, next_token=self._next_token, counters=self.counters,
            refusals=self.refusals, appends=self._appends, reads=self._reads, desk=self.desk,
            reader_desk=self.reader_desk, snapshot_desk=self.snapshot_desk, note=self.note,
            greeting=self.greeting, told=self._tell_about_me, greeted=self.contacts.greeted,
        )

    def _next_token(self) -> int:
        self._tokens += 1
        return self._tokens

    # -- life ---------------------------------------------------------------------------------

    def connect(self, *, peers: Peers, server: MemberServer) -> None:
        """Set the connections; must precede L{start}."""
        self._peers, self._server = peers, server
        self._belonging.connect(peers, server)
        peers.follow(self.contacts.addresses)
        self.snapshot_desk.connect(peers)
        self.router.claim_with(server.claim, lambda one: self._belonging.vouches(peers, one), server)

    def start(self) -> None:
        """Start the tick and feed the core its first input."""
        assert self._peers is not None and self._server is not None, "connect first"
        if self.state != "starting":
            return
        self.state = "running"
        self._ticking = LoopingCall.withCount(self._tick)
        self._ticking.clock = self._clock
        self._ticking.start(self.config.tick_ms / 1000, now=False).addErrback(self._tick_failed)
        self._keep_house()
        self._driver.feed(ev.Started())

    def stop(self) -> Deferred[None]:
        """
        Hand leadership over, answer pending requests, then stop.

        @return: fires when the member has stopped. This may take arbitrarily long: see L{abort}.
        """
        ended = self.when_ended()
        if self.state == "running":
            self.state = "stopping"
            self._driver.feed(ev.StopRequested())
        elif self.state == "starting":
            self._end("stopped", "asked to stop before it started")
        return ended

    def abort(self, reason: str) -> None:
        """Stop now. Proposed appends end with an unknown outcome, the others were not stored."""
        if self.state not in ("stopped", "failed"):
            self._end("failed", reason)

    def when_ended(self) -> Deferred[None]:
        """@return: fires when the member has stopped, for any reason (see C{state}, C{reason})."""
        ended: Deferred[None] = Deferred()
        if self.state in ("stopped", "failed") and self._ticking is None:
            ended.callback(None)
        else:
            self._ended.append(ended)
        return ended

    def _end(self, state: str, reason: str) -> None:
        self._driver.stop()
        self.state, self.reason = state, reason
        self.turn.work(self._tell_ended)  # (The driver may be in the middle of a step.)

    def _tell_ended(self) -> None:
        ticking, self._ticking = self._ticking, None
        if ticking is not None and ticking.running:
            ticking.stop()
        self._appends.stop()
        self._reads.stop()
        self.router.stop()
        ended, self._ended = self._ended, []
        for waiter in ended:
            waiter.callback(None)

    def _tick(self, ticks: int) -> None:
        stall_s = self.counters.stalled(ticks - 1, self.config.tick_ms)
        if stall_s >= STALL_WARNING_S:
            self.log.warn("reactor stalled for {stall_s:.3f} s", stall_s=stall_s, self_id=self.config.self_id)
        self._driver.feed(ev.Ticked())
        now_s = self._clock.seconds()
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_INTERVAL_S
            self._sweep(now_s)
        if now_s >= self._next_check_point_s:
            self._next_check_point_s = now_s + self.config.check_point_interval / 1000
            self._with_store(self._store.check_point)
            self._with_store(self._terms.check_point)
        if self._store.disk_full:
            self._next_house_keeping_s = min(self._next_house_keeping_s, now_s + FULL_CHECK_INTERVAL_S)
        if now_s >= self._next_house_keeping_s:
            self._keep_house()
        if now_s >= self._scrubbing.next_s:
            self._with_store(self._scrubbing.step)

    def _tick_failed(self, failure: Failure) -> None:
        self.log.failure("tick failed; stopping member {self_id}", failure, self_id=self.config.self_id)
        self.abort(f"tick failed: {failure.getErrorMessage()}")

    def _sweep(self, now_s: float) -> None:
        assert self._peers is not None and self._server is not None
        self._peers.sweep(now_s)
        self._server.sweep(now_s)
        self._reads.sweep(now_s)
        self.desk.sweep(now_s)
        self.reader_desk.sweep()
        self._reports.sweep(now_s)
        self._told = None

    def _tell_about_me(self) -> Told:
        """Made at most once between two sweeps, however often METADATA is asked for."""
        if self._told is None:
            self._told = Told(self.told_admin, told_health(self.status()), self.desk.told())
        return self._told

    def _keep_house(self) -> None:
        self._next_house_keeping_s = self._clock.seconds() + HOUSE_KEEPING_INTERVAL_S
        self._key_watch.check(self._wall_clock()[0])
        self.router.door.refresh()
        self._with_store(self._keep_store)

    def _keep_store(self) -> None:
        self._house.keep(
            self._wall_clock(), keep_from_index=self._keep_from_index(),
            drop_to_index=self.snapshot_desk.drop_to_index(self._core.status()),
        )
        self._aside.look()
        is_full = self._store.disk_full
        if is_full != self._core.is_full:
            self._driver.feed(ev.RoomChecked(is_full))
        if self._disk_space is not None:
            self._space = self._disk_space()

    def _keep_from_index(self) -> int:
        """First index that expiry must keep."""
        reads, readers = self._reads.slowest_index() - 1, self.reader_desk.needed_index()
        return keep_from_index(self._core.status(), (reads, self.desk.needed_index, readers))

    def _with_store(self, call: Callable[[], None]) -> None:
        if self._driver.is_stopped:
            return
        try:
            call()
        except (StoreError, OSError) as error:
            self._driver.feed(ev.StoreFailed(reason=str(error)))

    # -- calls from this process ----------------------------------------------------------------

    @property
    def members(self) -> MemberState:
        """The group and the ledger, as the core knows them; to read only."""
        return self._core.members

    @property
    def is_running(self) -> bool:
        """Whether the driver still takes inputs."""
        return not self._driver.is_stopped

    @property
    def committed_index(self) -> int:
        """Highest index known to be committed, inclusive."""
        return self._core.committed_index

    @property
    def is_leader(self) -> bool:
        """Whether this member leads."""
        return self._core.members.is_leader

    @property
    def term(self) -> int:
        """Current term of this member."""
        return self._core.members.term

    @property
    def is_settled_leader(self) -> bool:
        """Whether this member leads, and all its entries are committed: none of an earlier term is lost."""
        core = self._core
        return core.members.is_leader and core.committed_index == core.ledger_end_index

    @property
    def leader_id(self) -> str | None:
        """Leader of the current term, if known."""
        return self._core.leader_id

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
        if self._driver.is_stopped:
            return fail(DLedgerError(ResponseCode.NOT_LEADER, reason=self.reason or "the member has stopped"))
        return self._appends.append(several)

    def read(self, index: int) -> Deferred[bytes]:
        """
        Read the body at C{index}, linearizably; at the leader only.

        @return: fires with the body. Fails with L{DLedgerError}: C{NOT_LEADER},
            C{INDEX_OUT_OF_RANGE} (not committed), C{INDEX_LESS_THAN_LOCAL_BEGIN} (deleted).
        """
        return self._reads.read(index)

    def wait_for(self, index: int, *, time_out_ms: int) -> Deferred[int]:
        """
        Wait until this member knows that C{index} is committed.

        @return: fires with the committed index; it is lower than C{index} if C{time_out_ms} passed first.
        """
        return self._reads.wait_for(index, time_out_ms)

    def read_committed(self, first_index: int, *, max_bytes: int) -> EntryBatch | None:
        """
        Records from C{first_index} on that this member knows to be committed; None if there are none.

        @raise DLedgerError: C{INDEX_LESS_THAN_LOCAL_BEGIN}, the entry was deleted.
        @raise StoreError: the records cannot be read.
        """
        if first_index > self._core.committed_index:
            return None
        begin_index = self._store.ledger_begin_index
        if first_index < max(begin_index, 0):
            raise DLedgerError(
                ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, index=first_index, ledger_begin_index=begin_index
            )
        end_index = self._core.committed_index
        return self._store.read_range(first_index, end_index=end_index, max_bytes=max_bytes)

    def transfer(self, transferee_id: str) -> Deferred[Response]:
        """Hand leadership to C{transferee_id}. @return: fires with the answer, with any code."""
        config = self.config
        return self.router.ask(LeadershipTransferRequest(
            group=config.group, remote_id=config.self_id, term=-1, transfer_id=config.self_id,
            transferee_id=transferee_id,
        ))

    def status(self) -> NodeStatus:
        """The current status."""
        counters, server, peers = self.counters, self._server, self._peers
        member = self._core.status()
        return NodeStatus(
            member=member, listen=self.listen, admin=self.admin,
            store_path=self.config.self_path if self.config.store_type == "file" else "",
            state=self.state, reason=self.reason, uptime_s=self._clock.seconds() - self._started_s,
            connections=server.connections if server is not None else 0,
            connections_refused=server.connections_refused if server is not None else 0,
            connections_replaced=server.connections_replaced if server is not None else 0,
            answers_held_bytes=server.budgets.answers.held if server is not None else 0,
            unfinished_frame_bytes=server.budgets.unfinished.held if server is not None else 0,
            peers_connected=peers.connected if peers is not None else {},
            peer_addresses=self.contacts.members,
            requests=counters.requests, requests_abandoned=counters.requests_abandoned,
            appends=counters.appends, append_bytes=counters.append_bytes, gets=counters.gets,
            pulls=counters.pulls, pulled_bytes=counters.pulled_bytes, refusals=dict(counters.refusals),
            reports=dict(counters.reports), votes=dict(counters.votes), fsync=counters.fsync.status(),
            fsync_failures=counters.flush_failures,
            unsynced_bytes=bytes_behind(self._store, member.flushed_index),
            stalls=counters.stalls, stall_s=counters.stall_s,
            wire_errors=(server.wire_errors if server is not None else 0)
            + (peers.wire_errors if peers is not None else 0),
            body_errors=server.body_errors if server is not None else 0,
            leader_changes=counters.leader_changes,
            pull_waiters=self._reads.waiters, segments_deleted=counters.segments_deleted,
            disk_free_bytes=self._space.usable if self._space is not None else -1,
            disk_total_bytes=self._space.total if self._space is not None else -1,
            is_disk_full=self._store.disk_full or bool(self._driver.why_mute),
            begin_moved=self._house.begin_moved, healthy_lag_entries=self.config.healthy_lag_entries,
            set_aside_files=max(self._aside.files, 0), set_aside_bytes=self._aside.size,
            tls_expires_s=self._key_watch.expires_s, readers=self.reader_desk.infos(),
            machine=self.snapshot_desk.with_log_kept(self.desk.status()),
            scrubbed_bytes=counters.scrubbed_bytes, scrub_passes=counters.scrub_passes,
            elections=dict(counters.elections), append_s=counters.append_s.status(),
            batches=counters.batches.status(), peer_lag_bytes={
                peer.peer_id: bytes_behind(self._store, peer.match_index, unknown=-1) for peer in member.peers
            } if member.role == "leader" else {},
        )

    # -- Surroundings of the driver -------------------------------------------------------------

    def now_ms(self) -> int:
        """See L{dledger.driver.driver.Surroundings.now_ms}."""
        return int(self._clock.seconds() * 1000)

    def send_request(self, peer_id: str, request_id: int, request: Request) -> None:
        """See L{dledger.driver.driver.Surroundings.send_request}."""
        assert self._peers is not None
        self._peers.send(peer_id, request_id, request)

    def follow_membership(self, membership: Membership) -> None:
        """See L{dledger.driver.driver.Surroundings.follow_membership}."""
        self._members_changed()
        if self._peers is not None:
            self._peers.greet()

    def _members_changed(self) -> None:
        if self._peers is not None:
            self._peers.follow(self.contacts.addresses)
        self.router.door.forget()

    def continue_later(self) -> None:
        """See L{dledger.driver.driver.Surroundings.continue_later}."""
        self._clock.callLater(0, self._driver.feed, ev.TurnCame())

    def answers_received(self, peer_id: str, answers: list[tuple[int, Response]]) -> None:
        """The peer answered; for L{Peers}."""
        self._driver.feed(*[
            ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=response)
            for request_id, response in answers
        ])

    def requests_failed(
        self, peer_id: str, failed: list[tuple[int, str]], is_incompatible: bool = False
    ) -> None:
        """The peer will not answer, or answered in another version of the protocol; for L{Peers}."""
        self._driver.feed(*[
            ev.RequestFailed(
                peer_id=peer_id, request_id=request_id, reason=reason, is_incompatible=is_incompatible
            )
            for request_id, reason in failed
        ])

    def note(self, event: str, facts: Mapping[str, object]) -> None:
        """An event on the connections that another party can repeat; for L{MemberServer} and the router."""
        self._reports.report(fx.Report(event=event, facts=facts))

    def peer_connected(self, peer_id: str) -> None:
        """A new connection to the peer is open; for L{Peers}."""
        self._driver.feed(ev.PeerConnected(peer_id=peer_id))

    def reply(self, token: int, response: Response) -> None:
        """See L{dledger.driver.driver.Surroundings.reply}."""
        self.router.reply(token, response)

    def answer_append(self, answer: fx.AnswerAppend) -> None:
        """See L{dledger.driver.driver.Surroundings.answer_append}."""
        self._appends.answered(answer)

    def answer_read(self, answer: fx.AnswerRead) -> None:
        """See L{dledger.driver.driver.Surroundings.answer_read}."""
        self._reads.answered(answer)

    def start_flush(self, flush_id: int, end_index: int) -> None:
        """See L{dledger.driver.driver.Surroundings.start_flush}."""
        self.flusher.start(flush_id, end_index)

    def committed(self, committed_index: int) -> None:
        """See L{dledger.driver.driver.Surroundings.committed}."""
        self._reads.committed()
        self.desk.committed()
        if self._embedding is not None:
            self._embedding.committed()

    def report(self, report: fx.Report) -> None:
        """See L{dledger.driver.driver.Surroundings.report}."""
        is_role = report.event == "role-changed"
        if is_role and self._embedding is not None:
            self._embedding.role_changed()
        if is_role:
            self.counters.note_role(report.facts.get("role"), report.facts.get("leader_id"))
        self._reports.report(report)

    def stop_member(self, stop: fx.StopMember) -> None:
        """See L{dledger.driver.driver.Surroundings.stop_member}."""
        if not stop.clean:
            self.log.critical(
                "member {self_id} stops: {reason}", self_id=self.config.self_id, reason=stop.reason
            )
        self._end("stopped" if stop.clean else "failed", stop.reason)

    def broken(self, error: BaseException) -> None:
        """See L{dledger.driver.driver.Surroundings.broken}."""
        failure = Failure(error)
        self.log.failure("member {self_id} stops because of a bug", failure, self_id=self.config.self_id)
        if self.state not in ("stopped", "failed"):
            self._end("failed", f"{type(error).__name__}: {error}")

    def _turn_failed(self, failure: Failure) -> None:
        assert failure.value is not None
        self.broken(failure.value)
