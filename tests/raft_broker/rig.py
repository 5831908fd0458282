# -*- test-case-name: tests.raft_broker.test_service -*-
"""Parts of a broker on a raft log, without sockets: ledgers with messages, and whole brokers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from twisted.internet.task import Clock

from dledger.base.disk.disk import Disk
from dledger.node.broker_hooks import Embedding
from dledger.node.member_process import MemberEndpoints, MemberExtras, MemberProcess
from dledger.node.node import Node
from dledger.node.service import MemberService
from dledger.node.threads import MemberThreads
from dledger.raft_broker.raft_log import RaftLog
from dledger.raft_broker.replication import RaftReplication, unplaced
from dledger.raft_broker.service import RaftBrokerService
from dledger.raft_broker.stamps import MessageStamps, PutPlaces, UnplacedRecord
from dledger.rocketmq.broker.options.config import broker_from_mapping
from dledger.rocketmq.broker.service import BrokerPorts, BrokerProcess
from dledger.rocketmq.store.records.records import NewMessage
from dledger.storage.files.term_file import TermFile
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.option_values import with_values
from tests.broker.support import plain
from tests.broker.test_service import WALL_S, Endpoint, ServiceCase, Threads
from tests.node.test_service import FakeFlushThread

FILE_SIZE = 4096


def ledger_config(**options: Any) -> DLedgerConfig:
    """Of a ledger with small files, in the directory of a broker."""
    values: dict[str, Any] = {
        "store_base_dir": "base", "group": "b", "peers": "n0-10.0.0.1:20911",
        "mapped_file_size_for_entry_data": FILE_SIZE,
    }
    return DLedgerConfig(**{**values, **options})


class LedgerOfMessages:
    """
    A ledger whose bodies are messages.

    @ivar place: where all of them are.
    """

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.config = ledger_config()
        self.store = FileStore.open(self.config, self.disk)
        self.stamps = MessageStamps()
        self.store.use(self.stamps)
        self.stamps.open({})
        self.place = PutPlaces()

    def leave(self) -> None:
        """As a member leaves it that is killed in term 1."""
        terms = TermFile(self.disk, self.config.self_path, member_ids=self.config.peers)
        terms.take_up(ledger_end_term=-1)
        terms.save(1, "n0")
        terms.close()
        self.store.abandon()

    def records(self, messages: Sequence[NewMessage], now_ms: int = 7) -> tuple[UnplacedRecord, ...]:
        """Messages as a writer hands them to a member."""
        return tuple(unplaced(one, now_ms, self.place) for one in plain(messages))

    def append(self, *messages: NewMessage, term: int = 1) -> None:
        """One write."""
        self.store.append_bodies(self.records(messages), term)

    def log(self, committed_index: int | None = None) -> RaftLog:
        """What of it is committed; None: all."""
        index = self.store.ledger_end_index if committed_index is None else committed_index
        return RaftLog(self.config, self.disk, self.store, self.stamps, committed_index=index,
                       record_size_max=self.config.body_bytes_max)


class RaftCase(ServiceCase):
    """
    A broker whose member is alone in its group, so that it leads.

    @ivar raft: the service of both. @cvar member_options: of the member, besides.
    """

    member_options: ClassVar[Mapping[str, object]] = {}

    def make(self, **options: Any) -> Any:
        """Not started. @return: the broker's service."""
        self.clock = Clock()
        self.reasons: list[str] = []
        self.endpoints = [Endpoint(10911), Endpoint(10909), Endpoint(20911)]
        self.asked: dict[str, Endpoint] = {}
        self.threads = Threads()
        listen, fast, member = self.endpoints
        config = broker_from_mapping({
            "store": "base", "name": "b", "brokerIP1": "10.0.0.1", "mapped_file_size_commit_log": FILE_SIZE,
            "mapped_file_size_consume_queue": 200, "enableDLegerCommitLog": True,
            "maxHashSlotNum": 16, "maxIndexNum": 64,
            "dLegerPeers": "n0-10.0.0.1:20911", "dLegerSelfId": "n0", "changeHosts": "192.168.1.1",
            **options,
        })

        def make_member(of_member: DLedgerConfig, embedding: Embedding) -> MemberService:
            return MemberService(
                with_values(of_member, self.member_options),
                MemberProcess(
                    reactor=self.clock, disk=self.disk, rng=random.Random(1), failed=self.reasons.append,
                    threads=MemberThreads.of(self.clock, flush=FakeFlushThread()),
                    wall_clock=lambda: (WALL_S + self.clock.seconds(), 4),
                ),
                MemberEndpoints(listen=member),  # type: ignore[arg-type]
                MemberExtras(embedding=embedding),
            )

        self.raft = RaftBrokerService(
            config, BrokerProcess(
                reactor=self.clock, disk=self.disk, rng=random.Random(1),
                wall_s=lambda: WALL_S + self.clock.seconds(), failed=self.reasons.append,
                endpoint_of=self.endpoint_of, threads=self.threads,  # type: ignore[arg-type]
            ), BrokerPorts(clients=listen, fast=fast), make_member=make_member,  # type: ignore[arg-type]
        )
        self.service = self.raft.broker
        return self.service

    def start(self, **options: Any) -> Any:
        """Started; its member leads soon, unless it waits for others."""
        self.make(**options)
        self.raft.startService()
        self.settle(2.0)
        return self.service

    def stop(self, seconds: float = 3.0) -> None:
        """In order."""
        stopped = self.raft.stopService()
        self.settle(seconds)
        self.successResultOf(stopped)
        self.assertFalse(self.threads.is_running)

    @property
    def node(self) -> Node:
        """Of the member."""
        assert self.raft.member.node is not None
        return self.raft.member.node

    @property
    def replication(self) -> RaftReplication:
        """Of the broker."""
        found = self.broker.replication
        assert isinstance(found, RaftReplication)
        return found
