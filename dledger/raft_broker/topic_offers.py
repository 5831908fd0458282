# -*- test-case-name: tests.raft_broker.test_topic_offers -*-
"""
Creates topics at a RocketMQ master that lacks them, although this slave has messages of them.

A RocketMQ member of a raft group copies the topics of its master every ten seconds. It begins up to thirty
seconds after a master is elected, because it must learn the address of the master first. A member that
becomes the master before it has copied a new topic has messages of a topic that its table lacks. It answers
consumers of the topic with TOPIC_NOT_EXIST (17), until a producer sends to the topic again. So a slave of
ours sends the master the request with which an administrator creates a topic (UPDATE_AND_CREATE_TOPIC, code
17 of the requests).

Rule 1: a topic is offered only if it has messages that are younger than L{RECENT_MS}. Each master is offered
a topic once; if its answer is lost, the topic is offered again with the next copy.
Rule 2: if a topic vanishes from the table of one master, it was deleted there. It is then offered to no
master, until a master has it again.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from dledger.rocketmq.broker.admin.commands import SYSTEM_TOPICS, UPDATE_AND_CREATE_TOPIC
from dledger.rocketmq.broker.lost_topics import lost_topics
from dledger.rocketmq.metadata.slave_synchronize import TIMEOUT_S, MasterAsker
from dledger.rocketmq.metadata.tables import TopicConfig, Topics
from dledger.rocketmq.store.store import MessageStore
from dledger.values.errors import DLedgerError
from protocols.rocketmq.commands import SUCCESS
from protocols.wire.remoting import RemotingCommand

#: Milliseconds. If the last message of a topic is older, every member has had time to copy the topic. If a
#: master lacks it then, it was deleted.
RECENT_MS = 600_000


class TopicOffers:
    """
    Compares the queues of this slave with each table of topics that it copies from a master.

    @ivar offered: number of topics that masters have created when we asked.
    """

    log = Logger()

    def __init__(
        self, store: MessageStore, topics: Topics, asker: MasterAsker, *, wall_ms: Callable[[], int],
        queue_nums: int,
    ) -> None:
        """
        @param store: has the queues and their messages.
        @param topics: the table of topics of this slave, copied from the master.
        @param asker: sends a request to the master.
        @param wall_ms: milliseconds since 1970.
        @param queue_nums: number of queues of a created topic, if the table of this slave lacks it, too.
        """
        self._store = store
        self._topics = topics
        self._asker = asker
        self._wall_ms = wall_ms
        self._queue_nums = queue_nums
        self._master = ""
        self._on_master: frozenset[str] = frozenset()
        self._deleted: set[str] = set()
        self._asked_for: set[str] = set()
        self.offered = 0

    async def copied(self, master: str) -> None:
        """
        Offer topics to a master whose table of topics has just been copied.

        @param master: address of the master.
        @raise StoreError: the log or a queue cannot be read.
        """
        if master != self._master:
            self._master = master
            self._on_master = frozenset()
            self._asked_for = set()
        # Without the topics that the master's table lacks, and that this slave has kept for its queues.
        on_master = frozenset(self._topics.entries).difference(self._topics.kept)
        self._deleted = (self._deleted | self._on_master) - on_master
        self._on_master = on_master
        settled = self._deleted | self._asked_for | SYSTEM_TOPICS
        since_ms = self._wall_ms() - RECENT_MS
        for lost in lost_topics(self._store, on_master, queue_nums=self._queue_nums, since_ms=since_ms):
            name = lost.topic_name
            if name not in settled and not name.startswith("rmq_sys_"):
                # The topic stays in here even if the master refuses it, because it would refuse it again.
                self._asked_for.add(name)
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
            self._asked_for.discard(topic.topic_name)
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
