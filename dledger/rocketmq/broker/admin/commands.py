# -*- test-case-name: tests.broker.admin.test_commands -*-
"""
Requests of administrators: change topics and groups, read the broker's options and status::

    17   UPDATE_AND_CREATE_TOPIC             25   UPDATE_BROKER_CONFIG
    18   the same for a list of topics       26   GET_BROKER_CONFIG
    215  DELETE_TOPIC_IN_BROKER              28   GET_BROKER_RUNTIME_INFO
    200  UPDATE_AND_CREATE_SUBSCRIPTIONGROUP 907  GET_BROKER_HA_STATUS
    225  the same for a list of groups
    207  DELETE_SUBSCRIPTIONGROUP

Rule 1: a change is answered when it is on stable storage. A change of topics also starts a registration with
name servers.
Rule 2: a slave refuses changes of topics and groups: it copies its master's tables. It has its own options.
Rule 3: the deletion of a topic is a note in the log, see L{dledger.rocketmq.store.deleted_topics}.
Then its consume queues and consumer offsets go, after all messages sent to it before are dispatched; so a new
topic of the same name begins at 0.
Rule 4: a list is taken whole, or nothing of it.

Source: AdminBrokerProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk, DiskSpace
from dledger.rocketmq.answering.java_json import read_request, wire_json
from dledger.rocketmq.answering.pieces import Pieces
from dledger.rocketmq.answering.refusals import Code, CommandGroup, Fields, Handlers, Refused
from dledger.rocketmq.broker.admin.ha_info import ha_counters, ha_runtime_info
from dledger.rocketmq.broker.admin.info import broker_options, log_space, runtime_info
from dledger.rocketmq.broker.admin.run_time_options import change_by_request
from dledger.rocketmq.broker.admin.runtime_stats import RuntimeStats
from dledger.rocketmq.broker.admin.topic_attributes import ATTRIBUTES, altered, read_attributes, read_changes
from dledger.rocketmq.broker.admin.topic_rates import TopicRates, topic_counts
from dledger.rocketmq.broker.consuming.pulls import PullCommands
from dledger.rocketmq.broker.options.groups import GROUP_CHARACTERS_MAX, OWN_GROUPS, is_group
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.answers import put_refusal
from dledger.rocketmq.broker.producing.puts import NotPut, Put
from dledger.rocketmq.broker.producing.topic_checks import refuse_name
from dledger.rocketmq.metadata.tables import GroupConfig, TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.replication.service import HAStatus
from dledger.values.errors import DLedgerError, StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import JsonObject, shown
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.layout import (
    DELETED_TOPIC,
    METADATA_TOPIC,
    TERM_START_TOPIC,
    TIMED_DONE_TOPIC,
    TIMED_TOPIC,
)

UPDATE_AND_CREATE_TOPIC, UPDATE_AND_CREATE_TOPIC_LIST = 17, 18
UPDATE_BROKER_CONFIG = 25
GET_BROKER_CONFIG = 26
GET_BROKER_RUNTIME_INFO = 28
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 200, 225
DELETE_SUBSCRIPTIONGROUP = 207
DELETE_TOPIC_IN_BROKER = 215
GET_BROKER_HA_STATUS = 907

QUEUES_MAX = 65_535
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
#: Topics or groups of one list.
LIST_MAX = 4_096
#: Of them, those that are read, or entered in the table, in one piece: each is a line of the log.
ENTRIES = 16

SYSTEM_TOPICS = frozenset({
    "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC", TERM_START_TOPIC, METADATA_TOPIC, TIMED_TOPIC, TIMED_DONE_TOPIC,
    DELETED_TOPIC,
})


@attrs.frozen(kw_only=True)
class AdminParts:
    """
    The parts of the broker that these requests need.

    @ivar save: brings changed tables to stable storage, and to the next master; fails with L{DLedgerError}.
    @ivar keep: brings them to the stable storage of this broker; fails with L{StoreError}.
    @ivar topics_changed: called after a change of topics, for name servers.
    @ivar note_deletion: notes in the log that a topic of this name is deleted now; returns the put, and
        raises L{NotPut} if nothing can be stored.
    @ivar popped_by: returns what ends the popped messages of a group, see
        L{GroupEnds.of<dledger.rocketmq.broker.consuming.popping.group_end.GroupEnds.of>}.
    @ivar ha_status: returns the status of replication; None before replication starts.
    @ivar stored: returns the number of messages put since the start.
    @ivar refused: returns the numbers of refused requests, as text.
    """

    disk: Disk
    pulls: PullCommands
    save: Callable[[], Deferred[None]]
    keep: Callable[[], Deferred[None]]
    topics_changed: Callable[[], None] = lambda: None
    note_deletion: Callable[[str], Put]
    popped_by: Callable[[str], Callable[[], Deferred[None]]] = lambda group: lambda: succeed(None)
    ha_status: Callable[[], HAStatus | None] = lambda: None
    stored: Callable[[], int] = lambda: 0
    refused: Callable[[], str] = lambda: ""


class AdminCommands(CommandGroup):
    """The group of commands."""

    log = Logger()

    def __init__(self, inside: BrokerInside, parts: AdminParts) -> None:
        self._parts = parts
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._wall_ms = inside.wall_ms
        self.stats = RuntimeStats(self._counters, clock=inside.clock, wall_ms=inside.wall_ms)
        self.topic_rates = TopicRates(lambda: topic_counts(inside.store.queues)[0], inside.clock)

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            UPDATE_AND_CREATE_TOPIC: self._put_topic,
            UPDATE_AND_CREATE_TOPIC_LIST: self._put_topic_list,
            DELETE_TOPIC_IN_BROKER: self._delete_topic,
            UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._put_group,
            UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._put_group_list,
            DELETE_SUBSCRIPTIONGROUP: self._delete_group,
            UPDATE_BROKER_CONFIG: self._change_options,
            GET_BROKER_CONFIG: self._options,
            GET_BROKER_RUNTIME_INFO: self._runtime,
            GET_BROKER_HA_STATUS: self._ha,
        }

    def sweep(self) -> None:
        """Read the counters. Called about once a second."""
        self.stats.sweep()
        self.topic_rates.sweep()

    def space(self) -> DiskSpace | None:
        """See L{log_space}."""
        return log_space(self._config, self._parts.disk)

    def _counters(self) -> dict[str, int]:
        pulls, status = self._parts.pulls, self._parts.ha_status()
        return {
            **({} if status is None else ha_counters(status)), "put": self._parts.stored(),
            "found": pulls.found, "missed": pulls.missed, "got": pulls.messages,
        }

    # -- changes ---------------------------------------------------------------------------------

    def _refuse_slave(self) -> None:
        if self._config.role.is_slave:
            raise Refused(
                Code.SYSTEM_ERROR,
                "Can't modify topic or subscription group from slave broker, "
                "please execute it from master broker.",
            )

    def _refuse_system(self, topic: str) -> None:
        config = self._config
        own = (config.broker_cluster_name, config.broker_name, f"{config.broker_cluster_name}_REPLY_TOPIC")
        if topic in SYSTEM_TOPICS or topic in own or topic.startswith("rmq_sys_"):
            raise Refused(Code.SYSTEM_ERROR, f"The topic[{topic}] is conflict with system topic.")

    def _put_topic(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        fields = Fields(request.ext_fields)
        self._refuse_slave()
        topic = TopicConfig(
            topic_name=fields.text("topic"), read_queue_nums=fields.number("readQueueNums"),
            write_queue_nums=fields.number("writeQueueNums"), perm=fields.number("perm"),
            topic_filter_type=fields.text("topicFilterType", FILTER_TYPES[0]),
            topic_sys_flag=fields.number("topicSysFlag", 0), order=fields.flag("order", False),
        )
        changes = read_changes(fields.text("attributes", ""))
        return self._put_topics(connection, request, [self._checked_topic(topic, changes)])

    def _put_topic_list(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        self._refuse_slave()
        topics = []
        for number, item in enumerate(_listed(request.body, "topicConfigList"), 1):
            if not number % ENTRIES:
                yield
            try:
                topic = TopicConfig.read(item, "topic")
            except BodyError as error:
                raise Refused(Code.SYSTEM_ERROR, f"list of topics: {error}") from error
            changes = read_attributes(topic.rest)
            read_changes(",".join(f"{name}={value}" if value else name for name, value in changes.items()))
            topics.append(self._checked_topic(attrs.evolve(topic, rest={}), changes))
        yield from self._put_topics(connection, request, topics)

    def _checked_topic(self, topic: TopicConfig, changes: Mapping[str, str]) -> TopicConfig:
        """
        The entry of a topic.

        @param changes: of its attributes, see L{read_changes}.
        @raise Refused: there can be no such topic.
        """
        name, filter_type = topic.topic_name, topic.topic_filter_type
        refuse_name(name)
        self._refuse_system(name)
        if filter_type not in FILTER_TYPES:
            raise Refused(
                Code.SYSTEM_ERROR, f"topicFilterType={shown(filter_type)} is not one of {FILTER_TYPES}"
            )
        for word, number, most in (
            ("readQueueNums", topic.read_queue_nums, QUEUES_MAX),
            ("writeQueueNums", topic.write_queue_nums, QUEUES_MAX), ("perm", topic.perm, 7),
        ):
            if not 0 <= number <= most:
                raise Refused(Code.SYSTEM_ERROR, f"{word}={number} is outside 0..{most}")
        before = self._metadata.topics.get(name)
        rest = {} if before is None else dict(before.rest)
        attributes = altered(
            None if before is None else read_attributes(rest), changes,
            allows_mixed=self._config.enable_mixed_message_type,
        )
        if attributes or ATTRIBUTES in rest:
            rest[ATTRIBUTES] = attributes
        return attrs.evolve(topic, rest=rest)

    def _put_topics(
        self, connection: CommandConnection, request: RemotingCommand, topics: list[TopicConfig]
    ) -> Pieces[None]:
        for number, topic in enumerate(topics, 1):
            if not number % ENTRIES:
                yield
            self._metadata.topics.put(topic, self._wall_ms())
            self.log.info("topic {topic} is changed by {address}",
                          topic=topic.topic_name, address=connection.address)
        self._parts.topics_changed()
        self._answer_when(self._parts.save(), connection, request)

    def _delete_topic(self, connection: CommandConnection, request: RemotingCommand) -> None:
        self._refuse_slave()
        name = Fields(request.ext_fields).text("topic")
        if self._metadata.topics.get(name) is None:  # the broker's own names may be longer
            refuse_name(name)
        self._refuse_system(name)
        self.log.info("topic {topic} is deleted by {address}", topic=name, address=connection.address)
        now_ms, metadata = self._wall_ms(), self._metadata
        noted = None
        if metadata.topics.get(name) is not None or name in self._store.queues.topics():
            try:  # first: a broker that ends here has the topic, and all of its messages or none
                noted = self._parts.note_deletion(name)
            except NotPut as error:
                raise Refused(*put_refusal(error)) from error
        topic = metadata.topics.get(name)
        metadata.topics.delete(name, now_ms)
        self._parts.topics_changed()
        done = Deferred.fromCoroutine(self._destroy(name, topic, noted))
        self._answer_when(done, connection, request)

    async def _destroy(self, name: str, topic: TopicConfig | None, noted: Put | None) -> None:
        """
        @param topic: its entry in the table until now. @param noted: the note in the log.
        @raise StoreError: deleting the queues or writing the tables failed.
        @raise Refused: the note in the log is not stored.
        """
        store = self._store
        status = PutStatus.PUT_OK if noted is None else await noted.done
        if not status.is_stored:
            # Its messages may not be over: the next start of any broker with them would add it again.
            is_gone = not self._config.role.is_slave and self._metadata.topics.get(name) is None
            if topic is not None and is_gone:
                self._metadata.topics.put(topic, self._wall_ms())
                self._parts.topics_changed()
            raise Refused(status.remoting_code, status.name)
        metadata = self._metadata
        if metadata.topics.get(name) is None:  # else the next topic's stay; those of this one are over
            metadata.consumer_offsets.delete_topic(name, self._wall_ms())
        metadata.request_modes.delete_topic(name)
        metadata.order_info.delete_topic(name)
        await store.reput.caught_up()
        if self._metadata.topics.get(name) is None:
            # No append can happen from here to the end of the block.
            store.forget_topic(name)
            # Dispatched records must not be dispatched again after a crash.
            await store.checkpoint()
        await self._parts.save()

    def _put_group(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        self._refuse_slave()
        try:
            document = read_request(request.body)
        except BodyError as error:
            raise Refused(Code.SYSTEM_ERROR, f"subscription group: {error}") from error
        return self._put_groups(connection, request, [_checked_group(document)])

    def _put_group_list(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        self._refuse_slave()
        groups = []
        for number, item in enumerate(_listed(request.body, "groupConfigList"), 1):
            groups.append(_checked_group(item))
            if not number % ENTRIES:
                yield
        yield from self._put_groups(connection, request, groups)

    def _put_groups(
        self, connection: CommandConnection, request: RemotingCommand, groups: list[GroupConfig]
    ) -> Pieces[None]:
        for number, group in enumerate(groups, 1):
            if not number % ENTRIES:
                yield
            self._metadata.groups.put(group, self._wall_ms())
            self.log.info("group {group} is changed by {address}",
                          group=group.group_name, address=connection.address)
        self._answer_when(self._parts.save(), connection, request)

    def _delete_group(self, connection: CommandConnection, request: RemotingCommand) -> None:
        self._refuse_slave()
        fields = Fields(request.ext_fields)
        name = fields.text("groupName")
        if name in OWN_GROUPS:
            raise Refused(Code.NO_PERMISSION, f"group {name} is the broker's own")
        now_ms, is_cleaned = self._wall_ms(), fields.flag("cleanOffset", False)
        end_popped = self._parts.popped_by(name) if is_cleaned else None
        self._metadata.groups.delete(name, now_ms)
        if is_cleaned:
            self._metadata.consumer_offsets.delete_group(name, now_ms)
            self._metadata.order_info.delete_group(name)
        self.log.info("group {group} is deleted by {address}", group=name, address=connection.address)
        done = self._parts.save()
        if end_popped is not None:
            done.addCallback(lambda _: end_popped())
        self._answer_when(done, connection, request)

    def _change_options(self, connection: CommandConnection, request: RemotingCommand) -> None:
        parts = self._parts
        if change_by_request(self._config, self._metadata, request.body, connection.address, self._wall_ms()):
            parts.topics_changed()  # name servers have the permission of the broker
        self._answer_when(parts.keep(), connection, request)

    def _answer_when(
        self, done: Deferred[None], connection: CommandConnection, request: RemotingCommand
    ) -> None:
        def failed(failure: Failure) -> None:
            if failure.check(DLedgerError, Refused) and not failure.check(StoreError):
                self.log.warn("an administrator's change may be lost: {reason}",
                              reason=failure.getErrorMessage())
            else:
                self.log.failure("an administrator's change could not be written", failure)
            connection.answer(request, code=Code.SYSTEM_ERROR, remark=failure.getErrorMessage())

        done.addCallbacks(lambda _: connection.answer(request), failed)

    # -- questions -------------------------------------------------------------------------------

    def _options(self, connection: CommandConnection, request: RemotingCommand) -> None:
        lines = [f"{name}={value}\n" for name, value in sorted(broker_options(self._config).items())]
        connection.answer(request, body="".join(lines).encode(),
                          ext_fields={"version": '{"counter":0,"stateVersion":0,"timestamp":0}'})

    def _runtime(self, connection: CommandConnection, request: RemotingCommand) -> None:
        parts = self._parts
        table = runtime_info(
            self._config, self._store, self._metadata, parts.disk, self.stats, held=len(parts.pulls),
            ha=parts.ha_status(), refused=parts.refused(),
        )
        connection.answer(request, body=wire_json({"table": table}))

    def _ha(self, connection: CommandConnection, request: RemotingCommand) -> None:
        status = self._parts.ha_status()
        if status is None:
            is_raft = self._config.raft.enable_dleger_commit_log
            raise Refused(Code.SYSTEM_ERROR, "its log is a raft group: ask the members with dledger health"
                          if is_raft else "replication is not running")
        info = ha_runtime_info(status, self.stats, self._wall_ms())
        connection.answer(request, body=wire_json(info))


def _listed(body: bytes, name: str) -> list[JsonObject]:
    """The objects of a list in a document. @raise Refused: it is malformed, empty or too long."""
    try:
        items = read_request(body).get(name)
        if not isinstance(items, list) or not 0 < len(items) <= LIST_MAX:
            raise BodyError(f"{name} is not a list of 1 to {LIST_MAX}")
        return [to_object(item, f"item of {name}") for item in items]
    except BodyError as error:
        raise Refused(Code.SYSTEM_ERROR, str(error)) from error


def _checked_group(document: JsonObject) -> GroupConfig:
    """@raise Refused: there can be no such group."""
    try:
        group = GroupConfig.read(document, "group")
    except BodyError as error:
        raise Refused(Code.SYSTEM_ERROR, f"subscription group: {error}") from error
    name, queues = group.group_name, group.retry_queue_nums
    if not is_group(name):
        raise Refused(Code.SYSTEM_ERROR, f"groupName={shown(name)}: write 1 to {GROUP_CHARACTERS_MAX} "
                                         "letters, digits or any of %|_-")
    if not 0 <= queues <= QUEUES_MAX:
        raise Refused(Code.SYSTEM_ERROR, f"retryQueueNums={queues} is outside 0..{QUEUES_MAX}")
    return group
