# -*- test-case-name: tests.broker.sending.test_native -*-
"""
Answers the requests of our own producers and readers in native frames: PUT, READ, OFFSETS.

The rules for these messages are those for RocketMQ's producers (L{dledger.rocketmq.broker.producing.rules}).

Rule 1: all PUTs of one read are one put, as in L{dledger.rocketmq.broker.producing.puts}. A mistake in one
frame refuses all of its messages, and does not affect other frames.
Rule 2: an answer without offsets means that nothing was stored, with certainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.answering.refusals import Code, CommandGroup, Handlers, Refused
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.puts import NotPut, PutPipeline
from dledger.rocketmq.broker.producing.rules import PutRules, host_of
from dledger.rocketmq.broker.producing.send_properties import delay_level, waits
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.log_reads import LogReads
from dledger.rocketmq.store.records.plain_records import Placed, PlainMessage
from dledger.rocketmq.store.records.records import NewMessage
from protocols.rocketmq.broker import BrokerConnection, NativeRequests, NativeTicket
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.broker_frames import (
    OffsetsAnswer,
    PutAnswer,
    PutRequest,
    ReadRequest,
    answer_parts,
)
from protocols.wire.rocketmq.broker_layout import BROKER_WIRE_VERSION, WIRE_VERSION_CODE, WIRE_VERSION_FIELD
from protocols.wire.rocketmq.layout import TRANSACTION_MASK
from protocols.wire.rocketmq.message import Host

NO_TRANSACTIONS = "there are no transactions here"
NO_TIMERS = "there are delay levels only (DELAY), no timers"


class _Put(NamedTuple):
    """
    A frame that can be stored.

    @ivar queue_id: the queue in the answer; delayed messages wait in another one.
    @ivar first, end: its messages are those of the put from C{first} to C{end - 1}.
    @ivar waits: whether the producer waits for slaves and disk.
    """

    ticket: NativeTicket
    queue_id: int
    first: int
    end: int
    waits: bool


def _answers_of(puts: Sequence[_Put], placed: Placed, status: PutStatus) -> list[bytes]:
    """The frames of the answers to frames whose messages are stored."""
    parts: list[bytes] = []
    for put in puts:
        answer = PutAnswer(
            code=status.remoting_code, queue_id=put.queue_id, queue_offset=placed.queue_offsets[put.first],
            store_timestamp=placed.store_timestamp, offsets=tuple(placed.offsets[put.first : put.end]),
            remark="" if status.is_stored else status.name,
        )
        parts += answer_parts(answer, put.ticket.opaque)
    return parts


class NativeCommands(CommandGroup):
    """
    A L{NativeSink}, and the command by which a client learns that this broker understands native frames.
    """

    log = Logger()
    small_codes = frozenset({WIRE_VERSION_CODE})

    def __init__(self, inside: BrokerInside, pipeline: PutPipeline, rules: PutRules, reads: LogReads) -> None:
        self._store = inside.store
        self._pipeline = pipeline
        self._rules = rules
        self._reads = reads
        self._config = inside.config
        self._wall_ms = inside.wall_ms
        self._own = inside.own

    def handlers(self) -> Handlers:
        return {WIRE_VERSION_CODE: self._say_version}

    def _say_version(self, connection: CommandConnection, request: RemotingCommand) -> None:
        connection.answer(request, ext_fields={WIRE_VERSION_FIELD: str(BROKER_WIRE_VERSION)})

    def drained(self, connection: CommandConnection) -> None:
        """A connection takes output again."""
        self._reads.grown()

    # -- NativeSink ------------------------------------------------------------------------------

    def natives_received(self, connection: BrokerConnection, requests: NativeRequests) -> None:
        """See L{NativeSink.natives_received}."""
        puts: list[tuple[NativeTicket, PutRequest]] = []
        try:
            for ticket, request in requests:
                if isinstance(request, PutRequest):
                    puts.append((ticket, request))
                elif isinstance(request, ReadRequest):
                    self._reads.read(connection, ticket, request)
                else:
                    connection.answer_native(ticket, self._offsets())
            if puts:
                self._put(connection, puts)
        except Exception:
            # Some requests may have an answer already: only closing the connection answers the rest.
            self.log.failure("native request of {address} failed", Failure(), address=connection.address)
            connection.abort("a request failed unexpectedly")

    def _offsets(self) -> OffsetsAnswer:
        log, config = self._store.log, self._config
        return OffsetsAnswer(
            begin_offset=log.begin_offset, end_offset=log.record_end, flushed_offset=log.flushed_offset,
            file_size=log.file_size, broker_id=config.role.broker_id, broker_name=config.broker_name,
            broker_role=config.role.name,
        )

    # -- puts ------------------------------------------------------------------------------------

    def _put(self, connection: BrokerConnection, requests: Sequence[tuple[NativeTicket, PutRequest]]) -> None:
        refused = self._pipeline.refusal()
        if refused is not None:
            for ticket, request in requests:
                self._refuse(connection, ticket, refused, len(request.bodies))
            return
        born_host = host_of(connection)
        puts: list[_Put] = []
        messages: list[PlainMessage] = []
        for ticket, request in requests:
            try:
                queue_id, found = self._read(request, born_host, connection.address)
            except Refused as error:
                connection.answer_native(ticket, PutAnswer(code=error.code, remark=error.remark))
            except ValueError as error:
                remark = f"the message is illegal: {error}"
                connection.answer_native(ticket, PutAnswer(code=Code.MESSAGE_ILLEGAL, remark=remark))
            else:
                first = len(messages)
                messages += found
                is_awaited = waits(request.properties) or self._pipeline.always_waits
                puts.append(_Put(ticket, queue_id, first, len(messages), is_awaited))
        if puts:
            self._store_all(connection, puts, messages)

    def _store_all(
        self, connection: BrokerConnection, puts: list[_Put], messages: Sequence[PlainMessage]
    ) -> None:
        later = [put for put in puts if put.waits]
        try:
            placed, done, is_placed = self._pipeline.put(messages, waits=bool(later))
        except NotPut as error:
            for put in puts:
                self._refuse(connection, put.ticket, error, put.end - put.first)
            return
        at_once = [put for put in puts if not put.waits]
        if at_once:
            frames = _answers_of(at_once, placed, PutStatus.PUT_OK)
            connection.answer_natives_made([put.ticket for put in at_once], frames)
        if not later:
            return
        tickets = [put.ticket for put in later]
        # While slaves or the disk are at work there is time to write the answers that will be wanted.
        may_prepare = is_placed and not done.called
        ready = _answers_of(later, placed, PutStatus.PUT_OK) if may_prepare else []

        def answer(status: PutStatus) -> None:
            if not placed.offsets:  # a log that places later has not stored them
                for put in later:
                    self._refuse(connection, put.ticket, NotPut(status, "not stored"), put.end - put.first)
                return
            is_ready = ready and status is PutStatus.PUT_OK
            connection.answer_natives_made(tickets, ready if is_ready else _answers_of(later, placed, status))

        done.addCallback(answer)

    def _read(
        self, request: PutRequest, born_host: Host, address: str
    ) -> tuple[int, list[PlainMessage]]:
        """
        The queue in the answer, and the messages.

        @raise Refused: policy forbids them.
        @raise ValueError: they are malformed.
        """
        if not request.bodies:
            raise ValueError("a PUT without messages")
        rules, properties = self._rules, request.properties
        topic = rules.checks.writable(request.topic)
        queue_id = rules.checks.queue_of(topic, request.queue_id, address)
        stored = rules.stored(properties, topic=topic.topic_name)
        rules.refuse_transaction(
            properties, is_flagged=bool(request.sys_flag & TRANSACTION_MASK), remark=NO_TRANSACTIONS
        )
        rules.refuse_timer(properties, NO_TIMERS)
        level = delay_level(stored)
        longest = NewMessage(
            topic=topic.topic_name, queue_id=queue_id, body=max(request.bodies, key=len),
            properties_data=stored, flag=request.flag, sys_flag=request.sys_flag,
            born_timestamp=request.born_timestamp or self._wall_ms(), born_host=born_host,
            store_host=self._own.host,
        )
        longest = rules.delayed(longest, level)
        (like,) = self._pipeline.checked((longest,))
        form, stored_in, born, kept = like.form, like.queue_id, like.born_timestamp, like.properties
        return queue_id, [PlainMessage(form, stored_in, born, kept, body) for body in request.bodies]

    def _refuse(
        self, connection: BrokerConnection, ticket: NativeTicket, error: NotPut, count: int
    ) -> None:
        # After a failed write the content of the disk is unknown: offsets of -1 mean this.
        is_unknown = error.status is PutStatus.UNKNOWN_ERROR
        connection.answer_native(ticket, PutAnswer(
            code=error.status.remoting_code, offsets=(-1,) * count if is_unknown else (), remark=str(error),
        ))

