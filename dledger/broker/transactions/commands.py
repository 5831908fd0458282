# -*- test-case-name: tests.broker.transactions.test_commands -*-
"""
END_TRANSACTION (37): a producer commits a half message or rolls it back.

Rule 1: the request must name the half message rightly: its group, its offset in its queue and in the log.
Rule 2: the message comes first in the log, then the op message, in one put. If only the first is there after
a crash, the producer is asked later, and the message may be there twice; it is never lost.
Rule 3: an unknown end changes nothing: the producer is asked again.

Source: EndTransactionProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.base.commands.refusals import LONG_MAX, LONG_MIN, Code, CommandGroup, Fields, Handlers, Refused
from dledger.broker.common.config import BrokerConfig
from dledger.broker.common.own_address import OwnAddress
from dledger.broker.ha.put_status import PutStatus
from dledger.broker.metadata.files import Metadata
from dledger.broker.sending.answers import told_of
from dledger.broker.sending.halves import (
    HALF_TOPIC,
    IMMUNITY,
    PRODUCER_GROUP,
    committed_message,
    op_message,
)
from dledger.broker.sending.puts import NotPut, PutPipeline
from dledger.broker.store.queries import record_at
from dledger.broker.store.store import MessageStore
from dledger.broker.transactions.topics import keep_topics
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message, decode_message

END_TRANSACTION = 37
#: Values of C{commitOrRollback}.
UNKNOWN_END, COMMIT, ROLLBACK = 0, 8, 12


class TransactionCommands(CommandGroup):
    """
    The group of commands.

    @ivar committed, rolled_back: numbers of transactions so far.
    """

    small_codes = frozenset({END_TRANSACTION})

    def __init__(
        self, config: BrokerConfig, store: MessageStore, metadata: Metadata, pipeline: PutPipeline, *,
        own: OwnAddress, wall_ms: Callable[[], int], commits: Callable[[str, int, int], None],
    ) -> None:
        """
        @param wall_ms: milliseconds since 1970.
        @param commits: called with the topic, the queue and the birth, in ms since 1970, of each message
            before it is committed.
        """
        self._config = config
        self._store = store
        self._metadata = metadata
        self._pipeline = pipeline
        self._own = own
        self._wall_ms = wall_ms
        self._commits = commits
        self.committed = self.rolled_back = 0

    def handlers(self) -> Handlers:
        """By request code."""
        return {END_TRANSACTION: self._end}

    def _end(self, connection: CommandConnection, request: RemotingCommand) -> None:
        if self._config.is_slave:
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
        now_ms = self._wall_ms()
        try:
            messages = [op_message(half.queue_offset, self._own.host, now_ms)]
            if end == COMMIT:
                committed = committed_message(half, self._own.host)
                self._commits(committed.topic, committed.queue_id, half.born_timestamp)
                messages.insert(0, committed)
            checked = [plain for message in messages for plain in self._pipeline.checked([message])]
            keep_topics(self._metadata, now_ms)
            done = self._pipeline.put(checked).done
        except ValueError as error:
            raise Refused(Code.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from error
        except NotPut as error:
            raise Refused(*told_of(error)) from error
        done.addCallback(self._ended, connection, request, end)

    def _find(self, fields: Fields) -> Message:
        offset = fields.number("commitLogOffset", least=LONG_MIN, most=LONG_MAX)
        try:
            record = record_at(self._store, offset)
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
        immune_ms = immunity_ms(named.get(IMMUNITY), self._config.transaction_time_out)
        is_late = named.get(IMMUNITY) and self._wall_ms() - half.born_timestamp > immune_ms
        if is_late and not fields.flag("fromTransactionCheck", False):
            raise Refused(Code.ILLEGAL_OPERATION, "Message commit fail, the time of its first check is over: "
                                                  f"{shown(named[IMMUNITY])} s")  # fmt: skip
        return half

    def _ended(
        self, status: PutStatus, connection: CommandConnection, request: RemotingCommand, end: int
    ) -> None:
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
