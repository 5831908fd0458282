# -*- test-case-name: tests.broker.test_replies -*-
"""
Replies to requests: a consumer answers a message whose producer waits for the answer::

    324  SEND_REPLY_MESSAGE     325  SEND_REPLY_MESSAGE_V2, the same with short names
    326  PUSH_REPLY_MESSAGE_TO_CLIENT, from the broker to the producer that waits

The producer is named by its client id (C{REPLY_TO_CLIENT}); it must be connected to this broker. The reply is
stored in the topic C{CLUSTER_REPLY_TOPIC}, too, unless C{store_reply_message_enable} is off.

Rule: a reply is pushed at most once, and nobody waits for its arrival; a producer that gets none asks again.

Source: ReplyMessageProcessor (4.9.8, 5.3.3); differs: the broker does not wait for the producer's answer.
"""

from __future__ import annotations

from dledger.rocketmq.answering.refusals import Code, CommandGroup, Handlers, Refused
from dledger.rocketmq.broker.consuming.producers import ProducerRights, ProducerTable, reads
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.answers import put_refusal
from dledger.rocketmq.broker.producing.puts import NotPut, Put, PutPipeline
from dledger.rocketmq.broker.producing.sending.sends import SEND_REPLY, SEND_REPLY_V2, LongSends
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.records import NewMessage
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import decode_properties

PUSH_REPLY_MESSAGE_TO_CLIENT = 326
_REPLY_TO = "REPLY_TO_CLIENT"


class ReplyCommands(CommandGroup):
    """
    The group of commands.

    @ivar pushed: number of replies that were pushed so far.
    """

    small_codes = frozenset({SEND_REPLY, SEND_REPLY_V2})

    def __init__(
        self, inside: BrokerInside, pipeline: PutPipeline, long: LongSends, producers: ProducerTable, *,
        rights: ProducerRights | None = None,
    ) -> None:
        """@param rights: of the accounts; None: every producer may get replies."""
        self._rights = rights
        self._config = inside.config
        self._long = long
        self._pipeline = pipeline
        self._producers = producers
        self._own = inside.own
        self._wall_ms = inside.wall_ms
        self.pushed = 0

    def handlers(self) -> Handlers:
        """By request code."""
        return {SEND_REPLY: self._reply, SEND_REPLY_V2: self._reply}

    def _reply(self, connection: CommandConnection, request: RemotingCommand) -> None:
        refused = self._pipeline.refusal()
        if refused is not None:
            raise Refused(*put_refusal(refused))
        try:
            send = self._long.read(connection, request)
            if len(send.messages) != 1:
                raise ValueError("a batch is not a reply")
            (message,) = send.messages
            checked = self._pipeline.checked([message])
        except ValueError as error:
            raise Refused(Code.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from error
        problem = self._push(connection, message)
        if not self._config.store_reply_message_enable:
            self._answer(connection, request, problem, send.queue_id, "0", 0)
            return
        try:
            put = self._pipeline.put(checked, waits=send.waits)
        except NotPut as error:
            raise Refused(*put_refusal(error)) from error
        put.done.addCallback(self._stored, put, connection, request, problem, send.queue_id)

    def _stored(
        self, status: PutStatus, put: Put, connection: CommandConnection, request: RemotingCommand,
        problem: str, queue_id: int,
    ) -> None:
        if not status.is_stored:
            self._answer(connection, request, problem, queue_id, "0", 0)  # the producer has it all the same
            return
        message_id = f"{self._own.id_start.decode()}{put.placed.offsets[0]:016X}"
        self._answer(connection, request, problem, queue_id, message_id, put.placed.queue_offsets[0])

    def _push(self, connection: CommandConnection, message: NewMessage) -> str:
        """@return: why it was not pushed; empty if it was."""
        client_id = decode_properties(message.properties_data).get(_REPLY_TO)
        if not client_id:
            return f"there is no {_REPLY_TO}, so nobody knows who waits"
        member = self._producers.client(client_id)
        rights = self._rights
        may_know = member is not None and (rights is None or rights.may_produce(member, client_id, ""))
        if member is None or not may_know or not reads(member):
            return f"Channel of {shown(client_id)} not found."
        member.notify(RemotingCommand(
            code=PUSH_REPLY_MESSAGE_TO_CLIENT, opaque=0, body=message.body, ext_fields={
                "producerGroup": "", "topic": message.topic, "defaultTopic": "", "defaultTopicQueueNums": "0",
                "queueId": str(message.queue_id), "sysFlag": str(message.sys_flag),
                "bornTimestamp": str(message.born_timestamp), "flag": str(message.flag),
                "properties": message.properties_data.decode("utf-8", "replace"),
                "reconsumeTimes": str(message.reconsume_times), "unitMode": "false",
                "bornHost": connection.address, "storeHost": self._own.text,
                "storeTimestamp": str(self._wall_ms()),
            },
        ))
        self.pushed += 1
        return ""

    @staticmethod
    def _answer(
        connection: CommandConnection, request: RemotingCommand, problem: str, queue_id: int, message_id: str,
        queue_offset: int,
    ) -> None:
        connection.answer(
            request, code=Code.SYSTEM_ERROR if problem else Code.SUCCESS, remark=problem, ext_fields={
                "msgId": message_id, "queueId": str(queue_id), "queueOffset": str(queue_offset),
            },
        )
