# -*- test-case-name: tests.node.test_node,tests.machine.test_requests -*-
"""The parts of a member that answer requests, put together: each kind of request has its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

from twisted.internet.defer import Deferred

from dledger.core.state.inputs import MachineChecked, Origin
from dledger.node.belonging import Belonging
from dledger.node.broker_hooks import Embedding
from dledger.node.requests.about import Reported
from dledger.node.requests.aging import ProducerAging
from dledger.node.requests.appends import AppendGate, AppendResult
from dledger.node.requests.entry_times import EntryTimes, TimedProposals
from dledger.node.requests.group_clock import GroupClock
from dledger.node.requests.group_states import GroupFetch, GroupOffers
from dledger.node.requests.machine_requests import MachineRequests, MachineSurroundings
from dledger.node.requests.readers import ReaderHandler
from dledger.node.requests.refusals import Refusals
from dledger.node.requests.router import Answerers, Introductions, RequestRouter
from dledger.node.requests.snapshots import SnapshotHandler
from dledger.node.requests.state_orders import StateOrders
from dledger.node.requests.time_orders import TimeOrders
from dledger.node.work.inside import MemberInside
from dledger.node.work.keeping import keep_from_index
from dledger.node.work.reads import Reads
from dledger.node.work.state_digests import StateDigests
from protocols.turn import Turn
from protocols.wire.ledger.messages import LeadershipTransferRequest, Response
from protocols.wire.ledger.own.own_entries import MACHINE_CHANNEL, READER_CHANNEL, STATE_CHANNEL


class Handlers:
    """
    @ivar router: receives the requests of connections.
    @ivar refusals: answers requests that are refused.
    @ivar machine: the place of a state machine, and the handler of the requests to it.
    @ivar machine_surroundings: for the part that answers these requests.
    @ivar readers: answers the requests of readers.
    @ivar snapshots: exchanges snapshots with other members.
    @ivar state_digests: compares the state of the group with that of other members.
    @ivar state_orders: takes an operator's order to begin the state of the group anew.
    @ivar time_orders: takes an operator's order to reset the times of the log.
    @ivar group_fetch: gets the state of the group from another member, while this one has none.
    """

    def __init__(
        self, inside: MemberInside, turn: Turn, belonging: Belonging, *, reported: Callable[[], Reported],
        embedding: Embedding | None,
    ) -> None:
        """
        @param reported: what METADATA says about this member besides the core's facts.
        @param embedding: the program in this process that alone appends; None: clients append.
        """
        takes_appends = embedding is None
        config, store, core, counters = inside.config, inside.store, inside.core, inside.counters
        broken = inside.reporter.broken
        next_token = count(1).__next__
        self._core = core
        self._config = config
        self._store = store
        self._embedding = embedding or Embedding()
        self._is_embedded = embedding is not None
        propose = inside.feed
        clock = GroupClock(
            config.entry_times_ahead_ms, leading=core.member, wall_s=inside.wall_s, note=inside.reporter.note
        )
        if config.entry_times_ms and takes_appends:
            times = EntryTimes(
                config.entry_times_ms, ledger=store, leading=core.member, clock=clock,
                note=inside.reporter.note,
            )
            propose = TimedProposals(times, inside.feed, next_token).propose
        self.refusals = Refusals(core, inside.feed, counters)
        self.appends = AppendGate(
            group=config.group, ledger=store, propose=propose, turn=turn, seconds=inside.seconds,
            next_token=next_token, counters=counters,
            shared_count_max=max(1, min(64, config.max_pending_requests_num // 16)),
        )
        self.reads = Reads(
            group=config.group, store=store, committed_index=lambda: core.committed_index,
            request_reads=inside.feed, turn=turn, next_token=next_token, refuse=self.refusals.refuse,
            owner_of=lambda connection: self.router.access.owner_of(connection), counters=counters,
        )
        self.machine = MachineRequests(
            config.group, leader_id=lambda: core.leader_id, broken=broken, counters=counters
        )
        later = partial(turn.put_off, cost_s=0.0, is_short=False)
        self._offers = GroupOffers(store, inside.seconds, later)
        self.snapshots = SnapshotHandler(
            config=config, members=core.member, machine=lambda: self.machine.machine, now_ms=inside.now_ms,
            counters=counters, offers=self._offers,
        )
        self.group_fetch = GroupFetch(
            store, self_id=config.self_id, senders=self.snapshots.state_senders, ask=self.snapshots.ask,
            later=later,
        )
        self.state_orders = StateOrders(
            config.group, store, status=core.status, others=self.snapshots,
            append=self.appends.append_own if takes_appends else None,
        )
        self.time_orders = TimeOrders(
            config.group, store, clock, status=core.status, is_leader=lambda: core.member.is_leader,
            append=self.appends.append_own if takes_appends else None, note=inside.reporter.note,
        )
        self.state_digests = StateDigests(
            store, core.member, ask=self.snapshots.ask_reported, report=inside.reporter.report, later=later,
            append=self._append_state_entry if takes_appends else None, hand_over=self.transfer,
            void=lambda why: inside.with_store(partial(store.void_group, why)),
        )
        self._aging = ProducerAging(
            store, config.producers_expire_hours * 3_600_000, is_leader=lambda: core.member.is_leader,
            clock=clock, append=self.appends.append_own,
        )
        self.machine_surroundings = MachineSurroundings(
            append=self._append_command, append_order=partial(self.appends.append_own, MACHINE_CHANNEL),
            read_index=self.reads.read_index, status=core.status, term=lambda: core.member.term,
            group=lambda: store.group, now_ms=inside.now_ms, others=self.snapshots, note=inside.reporter.note,
            judged=lambda *, runs, is_unfit: inside.feed(MachineChecked(runs=runs, is_unfit=is_unfit)),
        )
        self.readers = ReaderHandler(
            config=config, ledger=store, core=core, reads=self.reads, now_ms=inside.now_ms,
            append=partial(self.appends.append_own, READER_CHANNEL) if takes_appends else None, broken=broken,
            note=inside.reporter.note, counters=counters,
        )
        self.router = RequestRouter(
            inside, Answerers(
                appends=self.appends, reads=self.reads, machine=self.machine, readers=self.readers,
                snapshots=self.snapshots, state_orders=self.state_orders, time_orders=self.time_orders,
            ), self.refusals, Introductions(
                greeting=belonging.greeting, greeted=belonging.contacts.greeted, reported=reported,
            ), next_token=next_token, takes_appends=takes_appends,
        )

    def _append_state_entry(self, body: bytes, ended: Callable[[object], None]) -> None:
        self.appends.append_own(STATE_CHANNEL, body).addBoth(ended)

    def transfer(self, member_id: str) -> Deferred[Response]:
        """Hand leadership to a member. @return: fires with the answer, with any code."""
        config = self._config
        return self.router.ask(LeadershipTransferRequest(
            group=config.group, remote_id=config.self_id, term=-1, transfer_id=config.self_id,
            transferee_id=member_id,
        ))

    def _append_command(
        self, command: bytes, producer: str, sequence: int, owner: str
    ) -> Deferred[AppendResult]:
        origin = Origin(producer, sequence, (), owner) if producer else None
        return self.appends.append_command(command, origin)

    def keep_from_index(self) -> int:
        """First index that expiry must keep."""
        reads = self.reads.slowest_index() - 1
        readers = self.readers.needed_index(is_nearly_full=self._store.disk_nearly_full)
        needed = (reads, self.machine.needed_index, readers, self._embedding.needed_index())
        return keep_from_index(self._core.status(), needed)

    def drop_to_index(self) -> int:
        """See L{SnapshotHandler.drop_to_index}."""
        return self.snapshots.drop_to_index(self._core.status())

    def sweep(self, now_s: float) -> None:
        """Time passed: what has waited too long is answered."""
        self.reads.sweep(now_s)
        self.machine.sweep(now_s)
        self.readers.sweep()
        self.group_fetch.sweep(now_s)
        self._offers.sweep()
        self._aging.sweep(now_s)
        self.time_orders.sweep()
        self.state_digests.sweep(now_s)

    def committed(self, _committed_index: int) -> None:
        """More entries are known to be committed."""
        if self.reads.waiting:
            self.reads.committed()
        if self.machine.hosting is not None:
            self.machine.hosting.machine.committed()
        if self._is_embedded:
            self._embedding.committed()

    def stop(self) -> None:
        """The member has stopped: answer all who wait."""
        self.group_fetch.stop()
        self.appends.stop()
        self.reads.stop()
        self.router.stop()
