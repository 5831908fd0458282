# -*- test-case-name: tests.broker.transactions.test_commands -*-
"""
END_TRANSACTION (37): a producer commits a half message or rolls it back.

Rule 1: the request must name the half message rightly: its group, its offset in its queue and in the log, and
its id where the request has one: the key that its producer gave it, or without a key the broker's id.
Rule 2: the message comes first in the log, then the op message, in one put. If only the first is there after
a crash, the next master stores the op message (L{EndsReading}).
Rule 3: an unknown end changes nothing: the producer is asked again.
Rule 4: a transaction ends once (L{TransactionEnds}): the same end once more is answered, and stores nothing;
another one is refused. An end that names the first half message also ends its copy that was asked about.
Rule 5: ages are those of the broker's clock. Nothing is committed into a topic that is deleted.

Source: EndTransactionProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred

from dledger.rocketmq.answering.refusals import (
    LONG_MAX,
    LONG_MIN,
    Code,
    CommandGroup,
    Fields,
    Handlers,
    Refused,
)
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.answers import put_refusal
from dledger.rocketmq.broker.producing.halves import (
    HALF_TOPIC,
    IMMUNITY,
    PRODUCER_GROUP,
    age_ms,
    committed_message,
    first_of,
    op_message,
)
from dledger.rocketmq.broker.producing.puts import NotPut, PutPipeline
from dledger.rocketmq.broker.producing.topic_checks import queue_now
from dledger.rocketmq.broker.producing.transactions.ends import COMMIT, ROLLBACK, UNKNOWN_END, TransactionEnds
from dledger.rocketmq.broker.producing.transactions.ends_reading import first_place
from dledger.rocketmq.broker.producing.transactions.topics import keep_topics
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.values.errors import StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message, decode_message

END_TRANSACTION = 37


class TransactionCommands(CommandGroup):
    """
    The group of commands.

    @ivar committed, rolled_back: numbers of transactions so far.
    """

    small_codes = frozenset({END_TRANSACTION})

    def __init__(
        self, inside: BrokerInside, pipeline: PutPipeline, *, ends: TransactionEnds,
        topic_of: Callable[[str, int, int], TopicConfig | None],
    ) -> None:
        """
        @param topic_of: called with the topic and the queue of each message before it is committed, and where
            in the log it was stored first; see L{LostTopics.found<dledger.rocketmq.broker.lost_topics>}.
        """
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._pipeline = pipeline
        self._own = inside.own
        self._wall_ms = inside.wall_ms
        self._topic_of = topic_of
        self._ends = ends
        self.committed = self.rolled_back = 0

    def handlers(self) -> Handlers:
        """By request code."""
        return {END_TRANSACTION: self._end}

    def _end(self, connection: CommandConnection, request: RemotingCommand) -> None:
        if self._config.role.is_slave:
            raise Refused(
                Code.SLAVE_NOT_AVAILABLE, "Message store is slave mode, so end transaction is forbidden."
            )
        fields = Fields(request.ext_fields)
        end = fields.number("commitOrRollback")
        if end not in (COMMIT, ROLLBACK):
            if end != UNKNOWN_END:
                raise Refused(Code.SYSTEM_ERROR, f"commitOrRollback={end}; 0, 8 and 12 are allowed")
            connection.answer(request)
            return
        half = self._find(fields)
        first = first_of(half)
        if not self._ends.begin(first, end):
            connection.answer(request)
            return
        try:
            done = self._put(half, end, self._ends.copy_of(first))
        except Exception as error:
            self._ends.stored(first, end, is_stored=False)
            if isinstance(error, ValueError):
                raise Refused(Code.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from error
            if isinstance(error, NotPut):
                raise Refused(*put_refusal(error)) from error
            if isinstance(error, OSError | StoreError):
                raise Refused(Code.SYSTEM_ERROR, f"reading the first half message: {error}") from error
            raise
        done.addCallback(self._ended, connection, request, end, first)

    def _put(self, half: Message, end: int, copy: int | None) -> Deferred[PutStatus]:
        """
        @param copy: queue offset of the copy that is open; None without one.
        @raise ValueError, NotPut, Refused: nothing was stored.
        """
        host, now_ms = self._own.host, self._wall_ms()
        offsets = {half.queue_offset, half.queue_offset if copy is None else copy}
        messages = [op_message(offset, host, now_ms, end=end) for offset in sorted(offsets)]
        if end == COMMIT:
            committed = committed_message(half, host)
            topic = self._topic_of(committed.topic, committed.queue_id, first_place(self._store, half))
            if topic is None:
                raise Refused(Code.TOPIC_NOT_EXIST, f"topic[{committed.topic}] not exist, it was deleted")
            messages.insert(0, attrs.evolve(committed, queue_id=queue_now(topic, committed.queue_id)))
        checked = [plain for message in messages for plain in self._pipeline.checked([message])]
        keep_topics(self._metadata, now_ms)
        return self._pipeline.put(checked).done

    def _find(self, fields: Fields) -> Message:
        offset = fields.number("commitLogOffset", least=LONG_MIN, most=LONG_MAX)
        try:
            record = self._store.sound.at(offset)
            half = None if record is None else decode_message(record)
        except (OSError, WireError) as error:
            raise Refused(Code.SYSTEM_ERROR, f"reading the message at {offset}: {error}") from error
        if half is None or half.topic != HALF_TOPIC:
            raise Refused(Code.SYSTEM_ERROR, f"Find prepared transaction message failed at {offset}")
        named = half.properties
        if named.get(PRODUCER_GROUP) != fields.text("producerGroup"):
            raise Refused(Code.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != fields.number("tranStateTableOffset", least=LONG_MIN, most=LONG_MAX):
            raise Refused(Code.SYSTEM_ERROR, "The transaction state table offset wrong")
        named_id = fields.text("msgId", "")
        if named_id and named_id not in (half.unique_key or half.message_id, half.message_id):
            raise Refused(Code.SYSTEM_ERROR, f"The message id wrong: {shown(named_id)}")
        immune_ms = immunity_ms(named.get(IMMUNITY), self._config.transaction_time_out)
        is_late = named.get(IMMUNITY) and age_ms(half, self._wall_ms()) > immune_ms
        if is_late and not fields.flag("fromTransactionCheck", False):
            raise Refused(Code.ILLEGAL_OPERATION, "Message commit fail, the time of its first check is over: "
                                                  f"{shown(named[IMMUNITY])} s")
        return half

    def _ended(
        self, status: PutStatus, connection: CommandConnection, request: RemotingCommand, end: int, first: int
    ) -> None:
        self._ends.stored(first, end, is_stored=status.is_stored)
        if not status.is_stored:
            connection.answer(request, code=status.remoting_code, remark=status.name)
            return
        self.committed += end == COMMIT
        self.rolled_back += end == ROLLBACK
        connection.answer(request)


def immunity_ms(text: str | None, default_ms: int) -> int:
    """
    Time from the birth of a half message until its producer is asked for the first time.

    @param text: the property, in seconds.
    @param default_ms: without one.
    """
    if not text:
        return default_ms
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return default_ms
    return int(text) * 1000
