# -*- test-case-name: tests.broker.sending.test_recalls -*-
"""
RECALL_MESSAGE (370): a producer takes back a message that waits for its time. The answer to its send has a
handle: topic, broker, time and unique key of the message.

Rule 1: an answer with success means that the message is not delivered, also if its time comes before the
answer.
Rule 2: C{recallMessageEnable=false}, the default as in RocketMQ, forbids it.
Rule 3: each answer, a refusal too, has the broker's region and trace switch: clients trace both.

Source: RecallMessageProcessor, RecallMessageHandle (5.3.3).
"""

from __future__ import annotations

from dledger.rocketmq.answering.refusals import Code, CommandGroup, Fields, Handlers, Refused
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.answers import SendAnswers, put_refusal
from dledger.rocketmq.broker.producing.delays.recall_handle import RecallHandle
from dledger.rocketmq.broker.producing.delays.timed import max_delay_ms
from dledger.rocketmq.broker.producing.delays.timers import TimerService
from dledger.rocketmq.broker.producing.puts import NotPut, Put
from dledger.rocketmq.replication.put_status import PutStatus
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown_bare
from protocols.wire.remoting import RemotingCommand

RECALL_MESSAGE = 370

ILLEGAL_OPERATION = 604


class RecallCommands(CommandGroup):
    """The group of commands."""

    def __init__(self, inside: BrokerInside, timers: TimerService, answers: SendAnswers) -> None:
        self._config = inside.config
        self._metadata = inside.metadata
        self._timers = timers
        self._answers = answers
        self._wall_ms = inside.wall_ms

    def handlers(self) -> Handlers:
        """By request code."""
        return {RECALL_MESSAGE: self._recall}

    def _recall(self, connection: CommandConnection, request: RemotingCommand) -> None:
        try:
            key, put = self._begin(request)
        except Refused as error:
            self._answers.refuse(connection, request, error.code, error.remark)
            return

        def stored(status: PutStatus) -> None:
            if status.is_stored:
                connection.answer(request, ext_fields={**self._answers.reported, "msgId": key})
            else:
                self._answers.refuse(connection, request, status.remoting_code, status.name)

        put.done.addCallback(stored)

    def _begin(self, request: RemotingCommand) -> tuple[str, Put]:
        """@return: the key of the message, and the note of its recall. @raise Refused: it is not recalled."""
        if not self._config.recall_message_enable:
            raise Refused(Code.NO_PERMISSION, "recall failed, operation is forbidden: the broker has "
                                              "recallMessageEnable=false")
        if self._config.role.is_slave:
            raise Refused(Code.SLAVE_NOT_AVAILABLE, "recall failed, broker service not available")
        fields = Fields(request.ext_fields)
        topic = fields.text("topic")
        if self._metadata.topics.get(topic) is None:
            raise Refused(Code.TOPIC_NOT_EXIST, f"recall failed, the topic[{shown_bare(topic)}] not exist")
        try:
            handle = RecallHandle.read(fields.text("recallHandle"))
        except ValueError as error:
            raise Refused(ILLEGAL_OPERATION, str(error)) from error
        if handle.topic != topic:
            raise Refused(ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker != self._config.broker_name:
            raise Refused(ILLEGAL_OPERATION, "recall failed, broker service not available")
        if not 0 < handle.at_ms - self._wall_ms() <= max_delay_ms(self._config):
            raise Refused(ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        if not self._timers.may_recall:
            raise Refused(Code.SYSTEM_BUSY, "too many messages are recalled: try again")
        try:
            return handle.key, self._timers.recall(topic, handle.key, handle.at_ms)
        except NotPut as error:
            raise Refused(*put_refusal(error)) from error
