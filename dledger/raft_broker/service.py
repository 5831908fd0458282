# -*- test-case-name: tests.raft_broker.test_service -*-
"""
A broker on a raft log as one Twisted service: a member, and the broker that alone appends to its ledger::

    startService   member: ledger open -> broker: queues open, committed messages dispatched, ports
    stopService    leadership handed over -> broker: no more messages, waiting ones answered, queues closed ->
                   member: ledger closed

Rule: if one of the two cannot go on, neither does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import attrs
from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.base.timing import within
from dledger.node.broker_hooks import Embedding
from dledger.node.member_process import MemberExtras, MemberProcess
from dledger.node.node import Node
from dledger.node.reporting.status import NodeStatus
from dledger.node.service import MemberService
from dledger.raft_broker.config import member_config
from dledger.raft_broker.raft_log import RaftLog
from dledger.raft_broker.replication import RaftReplication
from dledger.raft_broker.stamps import MessageStamps
from dledger.raft_broker.store import RaftStore
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.service import BrokerPorts, BrokerProcess, BrokerService
from dledger.rocketmq.broker.surroundings import BrokerSurroundings, ReplicationNeeds
from dledger.rocketmq.metadata.tables_mark import FollowedLog
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.store_config import EXPIRY_OPTIONS
from dledger.rocketmq.store.store import MessageStore
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.ledger.messages import Response

#: Seconds that a follower may take to become the leader when this broker stops.
HAND_OVER_S = 3.0

#: Makes a member from its options and the program that it is for.
MakeMember = Callable[[DLedgerConfig, Embedding], MemberService]


class RaftLogKind:
    """
    A L{dledger.rocketmq.broker.replication.LogKind}: the ledger of a member in this process.

    Implements L{dledger.rocketmq.broker.replication.LogKind}.

    @ivar member: the member; its store is open before L{open_store}.
    @ivar replication: None until the broker has made it.
    """

    def __init__(self, make_member: Callable[[Embedding], MemberService], *, is_closed: bool = False) -> None:
        """@param is_closed: see L{Embedding}."""
        self._stamps = MessageStamps()
        self._store: RaftStore | None = None
        self.replication: RaftReplication | None = None
        self.member = make_member(Embedding(
            stamps=self._stamps, is_closed=is_closed, needed_index=self._needed_index,
            committed=self._committed, role_changed=self._role_changed,
        ))

    def _needed_index(self) -> int:
        return -1 if self._store is None else self._store.needed_index

    def _committed(self) -> None:
        if self.replication is not None:
            self.replication.committed()

    def _role_changed(self) -> None:
        if self.replication is not None:
            self.replication.role_changed()

    def open_store(
        self, config: BrokerConfig, around: BrokerSurroundings, *, failed: Callable[[Failure], None],
        events: BrokerEvents, is_awaited: Callable[[], bool],
    ) -> RaftStore:
        member = self.member
        assert member.node is not None, "the member is open before the broker"
        log = RaftLog(
            member.config, around.disk, member.store, self._stamps,
            committed_index=member.node.committed_index, record_size_max=member.config.body_bytes_max,
        )
        self._store = RaftStore.open(
            config.store, around.disk, log, clock=around.reactor, run_in_thread=around.run_in_thread,
            failed=failed, events=events, is_awaited=is_awaited,
        )
        return self._store

    def followed(self, store: MessageStore) -> FollowedLog:
        assert isinstance(store, RaftStore), "the store of another kind"
        return FollowedLog(store.applied, store.held)

    def replicate(self, store: MessageStore, needs: ReplicationNeeds) -> RaftReplication:
        node = self.member.node
        assert isinstance(store, RaftStore) and node is not None, "the store of another kind"
        self.replication = RaftReplication(
            store, node, self._stamps, needs, body_bytes_max=self.member.config.body_bytes_max
        )
        return self.replication


class RaftBrokerService(Service):
    """
    A broker and its member.

    @ivar member, broker: the two services.
    """

    def __init__(
        self, config: BrokerConfig, process: BrokerProcess, ports: BrokerPorts, *, boot_id: str = "",
        make_member: MakeMember | None = None,
        make_admin: Callable[[BrokerService], IService] | None = None,
    ) -> None:
        """
        @param config: with C{broker_ip1}, and with the options of a raft log.
        @param process: C{failed} is also called when the member cannot start or go on.
        @param boot_id: of this boot of the machine; empty if not known.
        @param make_member: makes the member; by default a L{MemberService} with the parts given here.
        @param make_admin: see L{BrokerService}.
        @raise ValueError: options do not fit together.
        """
        of_member = member_config(config)

        def made(embedding: Embedding) -> MemberService:
            if make_member is not None:
                return make_member(of_member, embedding)
            of_process = MemberProcess(
                reactor=process.reactor, disk=process.disk, rng=random.Random(process.rng.random()),
                failed=process.failed, boot_id=boot_id,
            )
            return MemberService(of_member, of_process, extras=MemberExtras(embedding=embedding))

        self._reactor = process.reactor
        self._kind = RaftLogKind(made, is_closed=config.acl_enable)
        self.member = self._kind.member
        # There are no slaves of RocketMQ's other kind of replication.
        self.broker = BrokerService(
            config, process, attrs.evolve(ports, slaves=None), kind=self._kind, make_admin=make_admin
        )

    def reread(self, config: BrokerConfig, wanted: Mapping[str, object]) -> frozenset[str]:
        """
        See L{BrokerService.reread}; the member takes the rules of expiry.

        @param config: the whole configuration, as it is now.
        @raise ValueError: options do not fit together.
        """
        taken = self.broker.reread(wanted)
        of_member = self.member.reread(member_config(config))
        return taken | (EXPIRY_OPTIONS & wanted.keys() if of_member else frozenset())

    def member_status(self) -> NodeStatus:
        """The status of the member, which is open before the broker starts."""
        assert self.member.node is not None, "the pages begin with the broker"
        return self.member.node.status()

    def transfer(self, to: str) -> Deferred[Response]:
        """Let the broker whose member is C{to} become the master. @return: fires with any code."""
        assert self.member.node is not None, "the pages begin with the broker"
        return self.member.node.transfer(to)

    def startService(self) -> None:
        """See L{IService.startService}. Failures are reported to C{failed}."""
        super().startService()
        self.member.startService()
        if self.member.node is not None:
            self.broker.startService()

    def stopService(self) -> Deferred[None]:
        """See L{IService.stopService}: in order, and bounded in time."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        await self._hand_over()
        if self.broker.running:
            await self.broker.stopService()
        await self.member.stopService()

    async def _hand_over(self) -> None:
        """
        Let another broker become the master while this one still answers: so a producer is refused, not cut
        off, and the name servers know the next master when this one unregisters.
        """
        node = self.member.node
        if node is None or not self._leads(node):
            return
        status = node.status().member
        live = [
            one for one in status.peers if one.peer_id in status.voters and 0 <= one.last_heard_ms_ago < 1000
        ]
        for peer in sorted(live, key=lambda one: -one.match_index)[:2]:
            asked = node.transfer(peer.peer_id).addCallback(lambda _: None)
            await within(asked, HAND_OVER_S, self._reactor)
            if not self._leads(node):
                return

    @staticmethod
    def _leads(node: Node) -> bool:
        return node.is_running and node.is_leader
