# -*- test-case-name: tests.broker.test_parts -*-
"""
The interface through which a broker stores and replicates its log, and the first of its two kinds.

L{LogKind} and L{Replication} are the interface; what a kind does not have is answered by the defaults of
L{StoreSide} and L{AdminSide}. L{CommitLogKind} is RocketMQ's commit log, which a master
sends to its slaves. The other kind, a raft log, is in the room C{dledger.raft_broker}, which imports both the
broker and the ledger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from dledger.rocketmq.answering.refusals import CommandGroup
from dledger.rocketmq.broker.admin.damaged_records import DamagedRecords
from dledger.rocketmq.broker.admin.ha_resolve import HAResolve
from dledger.rocketmq.broker.admin.log_acts import LogActs
from dledger.rocketmq.broker.following import Following
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.producing.puts import LogWriter, ReplicatedLog
from dledger.rocketmq.broker.surroundings import BrokerSurroundings, ReplicationNeeds
from dledger.rocketmq.broker.upkeep import Maintenance
from dledger.rocketmq.metadata.tables_mark import FollowedLog
from dledger.rocketmq.replication.service import HAService, HAStatus
from dledger.rocketmq.replication.slave import LogRange
from dledger.rocketmq.store.commit_log_store import CommitLogStore
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.store import MessageStore


class StoreSide:
    """What the store of a broker calls. A replication overrides what concerns it; so with the others."""

    def grown(self) -> bool:
        """The log has grown. @return: whether slaves and answers have precedence over dispatching."""
        raise NotImplementedError

    def cut(self, end_offset: int) -> None:
        """
        The log now ends here (L{BrokerEvents.cut}).

        @raise StoreError: the consume queues could not follow.
        """
        raise AssertionError("this log is cut only where nothing is dispatched")

    def metadata_logged(self, record: bytes, offset: int, term: int, *, is_kept: bool) -> None:
        """
        A record of metadata is in the log (L{BrokerEvents.metadata_logged}).

        @param offset: of the record in the log.
        @param term: of its entry.
        @param is_kept: its tables were saved before.
        """


class Follows(Protocol):
    """Looks for the master of a slave, and follows it."""

    def follow(self) -> None:
        """Begin to look for the master, if this is a slave. Called after L{Replication.start}."""

    def unfollow(self) -> None:
        """Stop looking for the master."""

    def learned(self, master: str | None, ha_address: str | None) -> None:
        """
        A name server has reported the master.

        @param master: its address; None: it has none.
        @param ha_address: its address for slaves; None: not known.
        """

    def seeks_master(self) -> bool:
        """Whether this is a slave that can do nothing before it learns of another master."""


class AdminSide:
    """
    What administrators, and changes of metadata, ask.

    @ivar acts: what an operator can do with the log; None: nothing.
    """

    acts: LogActs | None = None

    def commands(self) -> tuple[CommandGroup, ...]:
        """The commands of this replication, for the router."""
        return ()

    def settled(self) -> Deferred[None]:
        """
        Wait until a change of the metadata may be acknowledged.

        @return: fires when the next master will know the change, as far as this replication can say; fails
            with L{DLedgerError} if that is not certain. By default at once: slaves copy the metadata when
            they ask for them, and nobody waits for that.
        """
        return succeed(None)

    def maintain(self, *, at_any_hour: bool = False) -> None:
        """
        Check the free disk space, and delete old files that nobody needs; by default somebody else does.

        @param at_any_hour: delete them even if this is not the hour of C{delete_when}.
        """

    def status(self) -> HAStatus | None:
        """The status for RocketMQ's tools; None: there is none."""
        return None


class Replication(StoreSide, AdminSide, ABC):
    """The replication of one broker: its life, and its sides."""

    @property
    @abstractmethod
    def following(self) -> Follows | None:
        """Follows the master; None if this broker will always be one."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port that name servers get as the one for slaves, even if nothing listens there."""

    @property
    @abstractmethod
    def writer(self) -> LogWriter:
        """Appends messages, and waits until they are replicated."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether L{start} was called, and L{stop} was not."""

    @abstractmethod
    def start(self) -> None:
        """Begin to replicate. Called when the ports of the broker listen."""

    @abstractmethod
    def stop(self) -> Deferred[None]:
        """@return: fires when no work on the log is under way."""

    @abstractmethod
    def tick(self) -> None:
        """Called once a second until the broker stops."""


class LogKind(Protocol):
    """One way to store and replicate a log."""

    def open_store(
        self, config: BrokerConfig, around: BrokerSurroundings, *, failed: Callable[[Failure], None],
        events: BrokerEvents, is_awaited: Callable[[], bool],
    ) -> MessageStore:
        """
        Open the store of the broker.

        @param is_awaited: whether a consumer waits for new messages.
        @raise StoreError: it cannot be opened; nothing is held.
        """

    def followed(self, store: MessageStore) -> FollowedLog | None:
        """The log that carries the metadata of the broker, too; None: it does not."""

    def replicate(self, store: MessageStore, needs: ReplicationNeeds) -> Replication:
        """The replication of a store that L{open_store} returned."""


class CommitLogKind:
    """A L{LogKind}: RocketMQ's commit log, with slaves that copy it. Implements L{LogKind}."""

    def open_store(
        self, config: BrokerConfig, around: BrokerSurroundings, *, failed: Callable[[Failure], None],
        events: BrokerEvents, is_awaited: Callable[[], bool],
    ) -> CommitLogStore:
        return CommitLogStore.open(
            config.store, around.disk, is_slave=config.role.is_slave, clock=around.reactor,
            run_in_thread=around.run_in_thread, failed=failed, events=events, is_awaited=is_awaited,
        )

    def followed(self, store: MessageStore) -> None:
        """See L{LogKind.followed}: slaves copy the metadata."""

    def replicate(self, store: MessageStore, needs: ReplicationNeeds) -> HAReplication:
        assert isinstance(store, CommitLogStore), "the store of another kind"
        return HAReplication(store, needs)


class HAReplication(Replication):
    """The L{Replication} of a commit log: this broker sends it to slaves, or is a slave."""

    def __init__(self, store: CommitLogStore, needs: ReplicationNeeds) -> None:
        config, around = needs.inside.config, needs.around
        self._store = store
        self._config = config
        self.ha = HAService(
            config.ha, store.log, around.reactor, rng=around.rng, failed=around.failed, events=needs.events,
            listen=around.ha_listen, master_range=self._master_range, act=needs.turn.act,
        )
        self._following = Following(needs, self.ha, store.log) if config.role.is_slave else None
        self._writer = ReplicatedLog(store, self.ha)
        self._resolve = HAResolve(self.ha, store, around.disk, master_range=self._master_range)
        self.acts = LogActs(store.log, self._resolve, around.reactor)
        self._maintenance = Maintenance(store, self.ha, wall_s=around.wall_s, failed=around.failed)

    @property
    def following(self) -> Following | None:
        return self._following

    @property
    def writer(self) -> LogWriter:
        return self._writer

    @property
    def is_running(self) -> bool:
        return bool(self.ha.running)

    @property
    def port(self) -> int:
        port = self._config.ha_port
        return port if self.ha.port is None else getattr(self.ha.port.getHost(), "port", port)

    def commands(self) -> tuple[CommandGroup, ...]:
        return self._resolve, DamagedRecords(self.ha, self._store)

    async def _master_range(self) -> LogRange:
        assert self.following is not None, "only a slave asks"
        return await self.following.master_range()

    def grown(self) -> bool:
        if self.ha.master is not None:
            self.ha.master.appended()
        return self.ha.waits_for_slaves()

    def start(self) -> None:
        self.ha.startService()

    def stop(self) -> Deferred[None]:
        return self.ha.stopService() if self.ha.running else succeed(None)

    def tick(self) -> None:
        self._store.scrub.tick()
        if self.following is not None and self.following.offers is not None:
            self.following.offers.tick()

    def cut(self, end_offset: int) -> None:
        self._store.log_was_cut(end_offset)

    def maintain(self, *, at_any_hour: bool = False) -> None:
        self._maintenance.keep(at_any_hour=at_any_hour)

    def status(self) -> HAStatus | None:
        return self.ha.status()
