# -*- test-case-name: tests.raft_broker.test_topic_offers -*-
"""
Topics that a master of RocketMQ has not heard of.

RocketMQ's members copy the topics of their master every ten seconds, once they know its address, which takes
up to thirty more. If such a member becomes master before, it has messages of topics that it does not know:
its consumers are answered with 17 (TOPIC_NOT_EXIST), for ever if nobody sends to the topic. So a slave of
ours has it create them, as an administrator does (UPDATE_AND_CREATE_TOPIC, 17).

Rule 1: a topic is offered only if it has messages that are younger than L{RECENT_MS}, and once to a master.
Rule 2: a topic that a master has had, and has no more, was deleted there: it is offered to none, until one
has it again.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from dledger.rocketmq.broker.admin.commands import SYSTEM_TOPICS, UPDATE_AND_CREATE_TOPIC
from dledger.rocketmq.broker.lost_topics import lost_topics
from dledger.rocketmq.broker.metadata.slave_synchronize import TIMEOUT_S, MasterAsker
from dledger.rocketmq.broker.metadata.tables import TopicConfig, Topics
from dledger.rocketmq.broker.store.store import MessageStore
from dledger.values.errors import DLedgerError
from protocols.rocketmq.commands import SUCCESS
from protocols.wire.remoting import RemotingCommand

#: A topic whose last message is older was known to the members, or deleted, long ago.
RECENT_MS = 600_000


class TopicOffers:
    """@ivar offered: number of topics that masters have taken."""

    log = Logger()

    def __init__(
        self, store: MessageStore, topics: Topics, asker: MasterAsker, *, wall_ms: Callable[[], int],
        queue_nums: int,
    ) -> None:
        """@param queue_nums: number of queues of a topic that this broker does not know either."""
        self._store = store
        self._topics = topics
        self._asker = asker
        self._wall_ms = wall_ms
        self._queue_nums = queue_nums
        self._master = ""
        self._known: frozenset[str] = frozenset()
        self._deleted: set[str] = set()
        self._told: set[str] = set()
        self.offered = 0

    async def copied(self, master: str) -> None:
        """Offer what the table of topics that has just been copied from a master lacks."""
        if master != self._master:
            self._master = master
            self._known = frozenset()
            self._told = set()
        known = frozenset(self._topics.entries).difference(self._topics.kept)
        self._deleted = (self._deleted | self._known) - known
        self._known = known
        settled = self._deleted | self._told | SYSTEM_TOPICS
        since_ms = self._wall_ms() - RECENT_MS
        for lost in lost_topics(self._store, known, table_ms=since_ms, queue_nums=self._queue_nums):
            name = lost.topic_name
            if name not in settled and not name.startswith("rmq_sys_"):
                # Also after a refusal, which would be the same the next time.
                self._told.add(name)
                await self._offer(master, self._topics.get(name) or lost)

    async def _offer(self, master: str, topic: TopicConfig) -> None:
        request = RemotingCommand(code=UPDATE_AND_CREATE_TOPIC, opaque=0, ext_fields={
            "topic": topic.topic_name, "defaultTopic": "TBW102", "perm": str(topic.perm),
            "readQueueNums": str(topic.read_queue_nums), "writeQueueNums": str(topic.write_queue_nums),
            "topicFilterType": topic.topic_filter_type, "topicSysFlag": str(topic.topic_sys_flag),
            "order": "true" if topic.order else "false",
        })
        try:
            answer = await self._asker.ask(master, request, timeout_s=TIMEOUT_S)
        except DLedgerError as error:
            self._told.discard(topic.topic_name)
            self.log.warn("topic {topic} cannot be offered to master {master}: {reason}",
                          topic=topic.topic_name, master=master, reason=str(error))
            return
        if answer.code != SUCCESS:
            self.log.warn(
                "master {master} does not know topic {topic}, which has messages, and refuses it: {code} "
                "{remark}; create it with mqadmin updateTopic", master=master, topic=topic.topic_name,
                code=answer.code, remark=answer.remark,
            )
            return
        self.offered += 1
        self.log.warn("master {master} did not know topic {topic}, which has messages: created there",
                      master=master, topic=topic.topic_name)
