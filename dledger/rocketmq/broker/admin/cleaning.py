# -*- test-case-name: tests.broker.admin.test_cleaning -*-
"""
Requests to tidy up, and the list of the broker's own topics::

    305  GET_SYSTEM_TOPIC_LIST_FROM_BROKER    316  CLEAN_UNUSED_TOPIC
    306  CLEAN_EXPIRED_CONSUMEQUEUE           329  DELETE_EXPIRED_COMMITLOG

Rule: nothing goes that would not go by itself. 329 does not wait for the hour of C{deleteWhen}, and that is
all; 306 deletes files of queues whose messages are deleted already; 316 has nothing to do, as the queues of a
topic are deleted with it.

Source: AdminBrokerProcessor, DefaultMessageStore (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from dledger.rocketmq.answering.java_json import wire_json
from dledger.rocketmq.answering.refusals import Code, CommandGroup, Handlers, Refused
from dledger.rocketmq.broker.admin.commands import SYSTEM_TOPICS
from dledger.rocketmq.broker.options.inside import BrokerInside
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

GET_SYSTEM_TOPIC_LIST = 305
CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC, DELETE_EXPIRED_COMMITLOG = 306, 316, 329


class Cleaning(CommandGroup):
    """The group of commands."""

    log = Logger()

    def __init__(self, inside: BrokerInside, *, maintain: Callable[[], None]) -> None:
        """@param maintain: deletes the files of the log that are old enough, at any hour."""
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._maintain = maintain

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            GET_SYSTEM_TOPIC_LIST: self._system_topics, CLEAN_EXPIRED_CONSUMEQUEUE: self._clean_queues,
            CLEAN_UNUSED_TOPIC: self._nothing, DELETE_EXPIRED_COMMITLOG: self._delete_files,
        }

    def _system_topics(self, connection: CommandConnection, request: RemotingCommand) -> None:
        config = self._config
        own = {config.broker_cluster_name, config.broker_name, f"{config.broker_cluster_name}_REPLY_TOPIC"}
        more = {name for name in self._metadata.topics.entries if name.startswith("rmq_sys_")}
        connection.answer(request, body=wire_json({"topicList": sorted(SYSTEM_TOPICS | own | more)}))

    def _clean_queues(self, connection: CommandConnection, request: RemotingCommand) -> None:
        try:
            self._store.queues.expire(self._store.log.begin_offset)
        except OSError as error:
            raise Refused(Code.SYSTEM_ERROR, f"deleting files of queues: {error}") from error
        connection.answer(request)

    def _nothing(self, connection: CommandConnection, request: RemotingCommand) -> None:
        connection.answer(request, remark="nothing to do: the queues of a topic are deleted with it")

    def _delete_files(self, connection: CommandConnection, request: RemotingCommand) -> None:
        if self._config.raft.enable_dleger_commit_log:
            raise Refused(Code.SYSTEM_ERROR, "the members of a raft group delete the old files of its log")
        self.log.info("old files of the log are deleted now: {address} asks", address=connection.address)
        self._maintain()
        connection.answer(request)
