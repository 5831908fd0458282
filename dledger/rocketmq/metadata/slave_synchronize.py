# -*- test-case-name: tests.broker.metadata.test_slave_synchronize -*-
"""
A slave's copy of its master's metadata, requested every ten seconds, and the master's answers::

    21   topics                    201  subscription groups
    43   offsets of consumers      45   offsets of delay levels
    402  request modes (5.x)

Rule 1: each item is requested, checked and adopted independently; a failed item leaves its table unchanged
and does not block the others.
Rule 2: adopted items are written to disk before the round ends.
Rule 2a: topics with local messages, and groups with offsets in them, stay although the master does not name
them: a master that lost its store names none. While replication of the log is stopped, nothing is requested:
the master may be another one.
Rule 2b: offsets are adopted when our log has reached the end that the master's had after its answer: else
this slave, as the next master, would pass over messages that it has not.
Rule 3: an answer always has a data version: a slave of 5.x fails on an answer without one.
Rule 4: attributes of topics are sent to a slave that asks for them (L{WHOLE}); RocketMQ's fail on them.

This module knows neither sockets nor the name server; its owner sets C{master_address}. The log itself is
replicated separately, so for a while a slave may have messages of unknown topics, or topics without messages.

Source: SlaveSynchronize.java, AdminBrokerProcessor.java (4.9.8, 5.3.3); see docs/ha.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from types import MappingProxyType
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.threads import RunInThread
from dledger.rocketmq.answering.pieces import Pieces
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import ConfigTable, Table
from dledger.values.errors import DLedgerError, StoreError
from protocols.rocketmq.commands import SUCCESS
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError
from protocols.wire.remoting import REQUEST_CODE_NOT_SUPPORTED, RemotingCommand

GET_ALL_TOPIC_CONFIG = 21
GET_ALL_CONSUMER_OFFSET = 43
GET_ALL_DELAY_OFFSET = 45
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
GET_ALL_MESSAGE_REQUEST_MODE = 402

#: Items by request code, in the order of the requests.
ITEMS: Mapping[int, str] = MappingProxyType({
    GET_ALL_TOPIC_CONFIG: "topics",
    GET_ALL_CONSUMER_OFFSET: "consumer offsets",
    GET_ALL_DELAY_OFFSET: "delay offsets",
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "subscription groups",
    GET_ALL_MESSAGE_REQUEST_MODE: "request modes",
})

#: Items that say how far messages are consumed or delivered.
OF_THE_LOG = frozenset({GET_ALL_CONSUMER_OFFSET, GET_ALL_DELAY_OFFSET})

#: Field of a request for topics: with their attributes, please. RocketMQ does not know it.
WHOLE = "withAttributes"

FIRST_S = 3.0
INTERVAL_S = 10.0
TIMEOUT_S = 3.0
#: A round that follows the last one by more intervals than these is logged. A slow master takes 15 s.
STALL_ROUNDS = 2
#: Kept names in one line of the log.
REPORTED_MAX = 20


def table_of(metadata: Metadata, code: int) -> Table | None:
    """The table that a request code asks for; None for other codes."""
    tables: dict[int, Table] = {
        GET_ALL_TOPIC_CONFIG: metadata.topics,
        GET_ALL_CONSUMER_OFFSET: metadata.consumer_offsets,
        GET_ALL_DELAY_OFFSET: metadata.delay_offsets,
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG: metadata.groups,
        GET_ALL_MESSAGE_REQUEST_MODE: metadata.request_modes,
    }
    return tables.get(code)


def metadata_answer(
    metadata: Metadata, code: int, *, is_whole: bool = False
) -> Pieces[bytes | None]:
    """
    Body, made in pieces, of the answer to a slave's request, for any of the broker's ports.

    A slave that requests a page (after 5.3.3) gets the whole table: without a total in the header it takes
    the answer as complete.

    @param is_whole: the slave is one of ours, which has asked for the attributes of topics, too.
    @return: None if C{code} is none of L{ITEMS}.
    """
    if is_whole and code == GET_ALL_TOPIC_CONFIG:
        return (yield from metadata.topics.wire_pieces(is_whole=True))
    table = table_of(metadata, code)
    return None if table is None else (yield from table.wire_pieces())


class MasterAsker(Protocol):
    """Sends requests: L{dledger.rocketmq.broker.command_client.CommandClient}."""

    def ask(self, address: str, command: RemotingCommand, *, timeout_s: float) -> Deferred[RemotingCommand]:
        """@return: fires with the answer; fails if none arrives in time."""


@attrs.frozen(kw_only=True)
class OwnLog:
    """
    The log of this slave, as far as a copy of the master's metadata depends on it.

    @ivar local_topics: returns the topics that have messages here which no deletion covers.
    @ivar is_stopped: returns whether nothing is to be copied now.
    @ivar reached: returns when our log has reached the present end of the master's; fails with
        L{DLedgerError} if it does not soon. None: messages and offsets have one order.
    """

    local_topics: Callable[[], Set[str]] = frozenset
    is_stopped: Callable[[], bool] = lambda: False
    reached: Callable[[], Awaitable[None]] | None = None


@attrs.frozen(kw_only=True)
class Round:
    """
    Result of one round.

    @ivar changed: names of the items that changed.
    @ivar failed: name of each failed item to the reason.
    """

    changed: tuple[str, ...] = ()
    failed: Mapping[str, str] = attrs.Factory(dict)


class SlaveSynchronize:
    """
    Copies the master's metadata in rounds.

    Invariant: at most one round is under way.

    @ivar master_address: C{host:port} of the master; with None or our own address nothing is requested.
    @ivar last: result of the last round; None before the first.
    @ivar rounds: number of rounds.
    """

    log = Logger()

    def __init__(
        self, metadata: Metadata, asker: MasterAsker, *, own_address: Callable[[], str],
        clock: IReactorTime, run_in_thread: RunInThread, own_log: OwnLog,
        interval_s: float = INTERVAL_S, topics_copied: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """
        @param topics_copied: called with the master's address at the end of a round that copied its topics.
        """
        self._metadata = metadata
        self._asker = asker
        self._own_address = own_address
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._interval_s = interval_s
        self._own_log = own_log
        self._topics_copied = topics_copied
        self._reported_kept: dict[int, tuple[str, ...]] = {}
        self._beginning: IDelayedCall | None = None
        self._looping = LoopingCall.withCount(self._loop)
        self._looping.clock = clock
        self._reported: dict[str, str] = {}
        self.master_address: str | None = None
        self.last: Round | None = None
        self.rounds = 0

    def start(self) -> None:
        """Start; the first round begins after at most C{FIRST_S} seconds."""
        self._beginning = self._clock.callLater(min(FIRST_S, self._interval_s), self._begin)

    def _begin(self) -> None:
        self._beginning = None
        self._looping.start(self._interval_s).addErrback(self._loop_failed)

    def stop(self) -> None:
        """Begin no more rounds; a round under way runs to its end."""
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None
        if self._looping.running:
            self._looping.stop()

    def _loop(self, count: int) -> Deferred[None]:
        if count > STALL_ROUNDS:
            self.log.warn(
                "metadata was not copied for {seconds} s: the reactor stalled, or a round took that long",
                seconds=count * self._interval_s,
            )
        return self.synchronize().addCallbacks(lambda _: None, self._round_failed)

    def _round_failed(self, failure: Failure) -> None:
        """The tables could not be written; the next round tries again."""
        self.log.failure("metadata of the master cannot be saved", failure)

    def _loop_failed(self, failure: Failure) -> None:
        self.log.failure("copying of metadata has stopped", failure)

    def synchronize(self) -> Deferred[Round]:
        """
        Run one round.

        @return: fires when every item has been adopted or has failed, and changes are on disk. Fails
            with L{StoreError} if they cannot be written.
        """
        return Deferred.fromCoroutine(self._synchronize())

    async def _synchronize(self) -> Round:
        address = self.master_address
        changed: list[str] = []
        failed: dict[str, str] = {}
        if address is not None and address != self._own_address() and not self._own_log.is_stopped():
            for code, name in ITEMS.items():
                try:
                    if await self._take_over(address, code):
                        changed.append(name)
                except StoreError:
                    raise
                except Exception as error:  # any error: continue with the other items
                    failed[name] = str(error) or type(error).__name__
            await self._metadata.save(self._run_in_thread)
            is_copied = ITEMS[GET_ALL_TOPIC_CONFIG] not in failed
            if self._topics_copied and is_copied and not self._own_log.is_stopped():
                await self._topics_copied(address)
            self._notify(address, failed)
        self.rounds += 1
        self.last = Round(changed=tuple(changed), failed=failed)
        return self.last

    async def _take_over(self, address: str, code: int) -> bool:
        fields = {WHOLE: "true"} if code == GET_ALL_TOPIC_CONFIG else {}
        request = RemotingCommand(code=code, opaque=0, ext_fields=fields)
        answer = await self._asker.ask(address, request, timeout_s=TIMEOUT_S)
        if self._own_log.is_stopped():
            return False  # since the request was sent
        if code == GET_ALL_MESSAGE_REQUEST_MODE and answer.code == REQUEST_CODE_NOT_SUPPORTED:
            return False  # a master of 4.9
        if answer.code != SUCCESS:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, answered=answer.code, remark=answer.remark)
        table = table_of(self._metadata, code)
        assert table is not None
        if not answer.body:
            raise BodyError("an answer without a body")
        if self._own_log.reached is not None and code in OF_THE_LOG:
            await self._own_log.reached()
            if self._own_log.is_stopped():
                return False
        changed = table.adopt(answer.body, self._needed(code))
        self._notify_kept(code)
        return changed

    def _needed(self, code: int) -> Set[str]:
        """Names of the entries of a table that local queues need."""
        if code == GET_ALL_TOPIC_CONFIG:
            return self._own_log.local_topics()
        if code == GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            offsets = self._metadata.consumer_offsets
            return {group for topic in self._own_log.local_topics() for group in offsets.groups_of(topic)}
        return frozenset()

    def _notify_kept(self, code: int) -> None:
        """Log kept entries when they change."""
        table = table_of(self._metadata, code)
        kept = table.kept if isinstance(table, ConfigTable) else ()
        if kept != self._reported_kept.get(code, ()):
            self._reported_kept[code] = kept
            self.log.warn(
                "{count} {item} that the master does not name are kept, for local queues need them: {names}",
                count=len(kept), item=ITEMS[code], names=", ".join(kept[:REPORTED_MAX]),
            )

    def _notify(self, address: str | None, failed: dict[str, str]) -> None:
        """Log each new failure once, and its end."""
        for name, reason in failed.items():
            if self._reported.get(name) != reason:
                self.log.warn(
                    "{item} of master {address}: {reason}", item=name, address=address, reason=reason
                )
        for name in self._reported:
            if name not in failed:
                self.log.info("{item} of master {address}: copied again", item=name, address=address)
        self._reported = failed
