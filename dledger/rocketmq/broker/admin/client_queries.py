# -*- test-case-name: tests.broker.admin.test_client_queries -*-
"""
Questions of administrators about clients, and to them::

    204  GET_PRODUCER_CONNECTION_LIST    307  GET_CONSUMER_RUNNING_INFO
    328  GET_ALL_PRODUCER_INFO           309  CONSUME_MESSAGE_DIRECTLY

The last two go on to a consumer, and its answer back to the administrator.

Rule 1: a consumer answers within L{ANSWER_S}, or the administrator is informed of that; at most L{ASKED_MAX}
wait.
Rule 2: the administrator's signature is not passed on.

Source: AdminBrokerProcessor.callConsumer, Broker2Client.callClient, ProducerManager (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.python.failure import Failure

from dledger.rocketmq.answering.java_json import wire_items, wire_json
from dledger.rocketmq.answering.pieces import ITEMS_A_PIECE, Pieces
from dledger.rocketmq.answering.refusals import Code, CommandGroup, Fields, Handlers, Refused
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.producers import KnownProducer, ProducerTable
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.values.errors import StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown_bare
from protocols.wire.remoting import RemotingCommand

GET_PRODUCER_CONNECTION_LIST, GET_ALL_PRODUCER_INFO = 204, 328
GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY = 307, 309

CONSUME_MSG_TIMEOUT = 207

#: Seconds that a consumer may take, as in RocketMQ.
ANSWER_S = 10.0
#: Consumers that are asked at a time.
ASKED_MAX = 64
#: Producers in one answer.
PRODUCERS_MAX = 16_384

_SIGNATURE = frozenset({"AccessKey", "Signature", "SecurityToken"})


class ClientQueries(CommandGroup):
    """The group of commands."""

    def __init__(self, inside: BrokerInside, consumers: ConsumerTable, producers: ProducerTable) -> None:
        self._config = inside.config
        self._store = inside.store
        self._consumers = consumers
        self._producers = producers
        self._clock = inside.clock
        self._asked = 0

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            GET_PRODUCER_CONNECTION_LIST: self._producers_of, GET_ALL_PRODUCER_INFO: self._all_producers,
            GET_CONSUMER_RUNNING_INFO: self._running, CONSUME_MESSAGE_DIRECTLY: self._consume,
        }

    # -- producers -------------------------------------------------------------------------------

    def _producers_of(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        group = Fields(request.ext_fields).text("producerGroup")
        found = self._producers.known(group)
        if not found:
            raise Refused(Code.SYSTEM_ERROR, f"the producer group[{shown_bare(group)}] not exist")
        listed = yield from wire_items(
            {"clientAddr": one.address, "clientId": one.client_id, "language": one.language or "OTHER",
             "version": one.version}
            for one in found[:PRODUCERS_MAX]
        )
        connection.answer(request, body=b'{"connectionSet":[' + listed + b"]}")

    def _all_producers(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        parts, left = [], PRODUCERS_MAX
        for number, group in enumerate(self._producers.groups(), 1):
            if not number % (ITEMS_A_PIECE // 4):
                yield
            known = self._producers.known(group)
            left -= len(known)
            if left < 0:
                raise Refused(Code.SYSTEM_ERROR, f"more than {PRODUCERS_MAX} producers: ask for one group")
            listed = yield from wire_items(map(_info, known))
            parts.append(wire_json([group])[1:-1] + b":[" + listed + b"]")
        connection.answer(request, body=b'{"data":{' + b",".join(parts) + b"}}")

    # -- one consumer ----------------------------------------------------------------------------

    def _running(self, connection: CommandConnection, request: RemotingCommand) -> None:
        self._pass_on(connection, request, dict(request.ext_fields), request.body)

    def _consume(self, connection: CommandConnection, request: RemotingCommand) -> None:
        text = Fields(request.ext_fields).text("msgId")
        try:
            offset = int(bytes.fromhex(text)[-8:].hex(), 16) if len(text) in (32, 56) else -1
            record = self._store.sound.at(offset) if offset >= 0 else None
        except (ValueError, OSError, StoreError) as error:
            raise Refused(Code.SYSTEM_ERROR, str(error)) from error
        if record is None:
            raise Refused(Code.SYSTEM_ERROR, f"msgId={shown_bare(text)}: no message of this broker has it")
        fields = {**request.ext_fields, "brokerName": self._config.broker_name}
        self._pass_on(connection, request, fields, record)

    def _pass_on(
        self, connection: CommandConnection, request: RemotingCommand, fields: Mapping[str, str], body: bytes
    ) -> None:
        asked = Fields(fields)
        group, client_id = asked.text("consumerGroup"), asked.text("clientId")
        member = self._consumers.member(group, client_id)
        name = f"<{shown_bare(group)}> <{shown_bare(client_id)}>"
        if not isinstance(member, CommandConnection):
            raise Refused(Code.SYSTEM_ERROR, f"The Consumer {name} not online")
        if self._asked >= ASKED_MAX:
            raise Refused(Code.SYSTEM_BUSY, f"{ASKED_MAX} consumers are being asked: try again")
        self._asked += 1
        asking = member.ask(RemotingCommand(
            code=request.code, opaque=0, body=body,
            ext_fields={key: value for key, value in fields.items() if key not in _SIGNATURE},
        ))
        asking.addTimeout(ANSWER_S, self._clock)

        def answered(answer: RemotingCommand) -> None:
            self._asked -= 1
            connection.answer(request, code=answer.code, remark=answer.remark, body=answer.body,
                              ext_fields=answer.ext_fields)

        def failed(failure: Failure) -> None:
            self._asked -= 1
            if isinstance(failure.value, DeferredTimeout):
                code, remark = CONSUME_MSG_TIMEOUT, f"consumer {name} Timeout: {ANSWER_S:g} s"
            else:
                code = Code.SYSTEM_ERROR
                remark = f"invoke consumer {name} Exception: {failure.getErrorMessage()}"
            connection.answer(request, code=code, remark=remark)

        asking.addCallbacks(answered, failed)


def _info(one: KnownProducer) -> Mapping[str, object]:
    return {
        "clientId": one.client_id, "remoteIP": one.address, "language": one.language or "OTHER",
        "version": one.version, "lastUpdateTimestamp": one.heard_ms,
    }
