# -*- test-case-name: tests.broker.test_gate,tests.broker.test_request_rights -*-
"""
What each request of a broker with access control needs: the rights of its account to topics and groups, an
administrator, or a signature only.

Rule 1: a request for which any signature is enough is answered with names, offsets, figures, options, or a
refusal; never with a message.
Rule 2: what is in no table here needs an administrator.

C{docs/security.md} has these tables, written by C{python -m tests.broker.request_rights --write}.

Source: PlainAccessValidator (4.9.8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

import attrs

from dledger.rocketmq.answering.pieces import at_once
from dledger.rocketmq.answering.refusals import Fields
from dledger.rocketmq.broker.access.accounts import RETRY, AccessRight
from dledger.rocketmq.broker.admin.refused import ABSENT
from dledger.rocketmq.broker.consuming.assignments import read_group
from dledger.rocketmq.broker.consuming.popping.acks import REFUSED, read_batch_names
from dledger.rocketmq.broker.consuming.popping.check_points import normal_topic
from dledger.rocketmq.broker.consuming.queue_locks import read_queues
from dledger.rocketmq.broker.consuming.subscriptions import read_heartbeat
from dledger.rocketmq.broker.producing.halves import DISCARDED_TOPIC, HALF_TOPIC, REAL_TOPIC
from dledger.rocketmq.broker.producing.send_properties import RETRY_TOPIC
from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX
from dledger.rocketmq.store.records.records import SCHEDULE_TOPIC
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.broker_layout import CHALLENGE_CODE, WIRE_VERSION_CODE
from protocols.wire.rocketmq.layout import TIMED_TOPIC
from protocols.wire.rocketmq.message import decode_properties

PUB, SUB = AccessRight.PUB, AccessRight.SUB

#: A topic, or a group after C{%RETRY%}, and the right to it.
Need = tuple[str, AccessRight]
#: As a topic of a L{Need}: any topic will do.
ANY_TOPIC = ""

SEND, SEND_V2, SEND_BATCH, SEND_REPLY, SEND_REPLY_V2 = 10, 310, 320, 324, 325
PULL, QUERY, UPDATE_OFFSET, VIEW, HEART_BEAT = (11, 361), 12, 15, 33, 34
#: POP: messages, acks, invisible times, questions; the batch of acks; and which name the topic of retries.
POP, POP_ACKS = (200_050, 200_051, 200_052, 200_053, 200_054, 200_055), 200_151
_OF_POPPED = (200_051, 200_053)
#: Which give messages of the named topic, or report them.
POP_MESSAGES = (200_050, 200_054, 200_055)
UNREGISTER, SEND_BACK, END_TRANSACTION, LIST_GROUP, LOCKS = 35, 36, 37, 38, (41, 42)
RUNNING_INFO, RECALL, ASSIGNMENT = 307, 370, 400


class Answered(Enum):
    """What the answer to a request has for which any signature is enough."""

    NAMES = "names and settings of topics and groups"
    OFFSETS = "offsets, and times of storing"
    FIGURES = "figures and options"
    CLIENTS = "ids and addresses of clients"
    CHECK = "whether the request is sound"
    REFUSAL = "a refusal: this broker does not do that for anybody"


@attrs.frozen
class RequestRule:
    """
    A request.

    @ivar name: RocketMQ's, or ours.
    @ivar needs: what its account needs, in words; or what the answer has if any signature is enough.
    """

    name: str
    needs: str | Answered


_SEND_NEEDS = ("`PUB` of the topic; of `%RETRY%group`: `SUB` of the group and of the message's "
               "`RETRY_TOPIC`; nothing for `RMQ_SYS_TRACE_TOPIC`")
_REPLY_NEEDS = "`SUB` of some topic for the cluster's `_REPLY_TOPIC`; else as a send"
_PULL_NEEDS = "`SUB` of topic and group"
_GROUP_NEEDS = "`SUB` of the group"
_ADMIN = "`admin: true`"

#: Every request of RocketMQ and of ours that has a rule, by its code.
RULES: Mapping[int, RequestRule] = {
    10: RequestRule("SEND_MESSAGE", _SEND_NEEDS),
    11: RequestRule("PULL_MESSAGE", _PULL_NEEDS),
    12: RequestRule("QUERY_MESSAGE", "`SUB` of the topic"),
    14: RequestRule("QUERY_CONSUMER_OFFSET", Answered.OFFSETS),
    15: RequestRule("UPDATE_CONSUMER_OFFSET", _PULL_NEEDS),
    17: RequestRule("UPDATE_AND_CREATE_TOPIC", _ADMIN),
    18: RequestRule("UPDATE_AND_CREATE_TOPIC_LIST", _ADMIN),
    21: RequestRule("GET_ALL_TOPIC_CONFIG", Answered.NAMES),
    25: RequestRule("UPDATE_BROKER_CONFIG", _ADMIN),
    26: RequestRule("GET_BROKER_CONFIG", Answered.FIGURES),
    28: RequestRule("GET_BROKER_RUNTIME_INFO", Answered.FIGURES),
    29: RequestRule("SEARCH_OFFSET_BY_TIMESTAMP", Answered.OFFSETS),
    30: RequestRule("GET_MAX_OFFSET", Answered.OFFSETS),
    31: RequestRule("GET_MIN_OFFSET", Answered.OFFSETS),
    32: RequestRule("GET_EARLIEST_MSG_STORETIME", Answered.OFFSETS),
    33: RequestRule("VIEW_MESSAGE_BY_ID", "`SUB` of the message's topic"),
    34: RequestRule("HEART_BEAT", "`SUB` of each consumer group and of each topic in it; the client id is of "
                                  "no other account's client that is connected"),
    35: RequestRule("UNREGISTER_CLIENT", "`SUB` of the consumer group"),
    36: RequestRule("CONSUMER_SEND_MSG_BACK", "`SUB` of the group and of the message's topic"),
    37: RequestRule("END_TRANSACTION", "`PUB` of the half message's topic"),
    38: RequestRule("GET_CONSUMER_LIST_BY_GROUP", _GROUP_NEEDS),
    41: RequestRule("LOCK_BATCH_MQ", f"{_GROUP_NEEDS}; the client id as for 34"),
    42: RequestRule("UNLOCK_BATCH_MQ", f"{_GROUP_NEEDS}; the client id as for 34"),
    43: RequestRule("GET_ALL_CONSUMER_OFFSET", Answered.OFFSETS),
    45: RequestRule("GET_ALL_DELAY_OFFSET", Answered.OFFSETS),
    46: RequestRule("CHECK_CLIENT_CONFIG", Answered.CHECK),
    200: RequestRule("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", _ADMIN),
    201: RequestRule("GET_ALL_SUBSCRIPTIONGROUP_CONFIG", Answered.NAMES),
    202: RequestRule("GET_TOPIC_STATS_INFO", Answered.OFFSETS),
    203: RequestRule("GET_CONSUMER_CONNECTION_LIST", Answered.CLIENTS),
    204: RequestRule("GET_PRODUCER_CONNECTION_LIST", Answered.CLIENTS),
    207: RequestRule("DELETE_SUBSCRIPTIONGROUP", _ADMIN),
    208: RequestRule("GET_CONSUME_STATS", Answered.OFFSETS),
    215: RequestRule("DELETE_TOPIC_IN_BROKER", _ADMIN),
    222: RequestRule("INVOKE_BROKER_TO_RESET_OFFSET", _ADMIN),
    225: RequestRule("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST", _ADMIN),
    300: RequestRule("QUERY_TOPIC_CONSUME_BY_WHO", Answered.NAMES),
    305: RequestRule("GET_SYSTEM_TOPIC_LIST_FROM_BROKER", Answered.NAMES),
    306: RequestRule("CLEAN_EXPIRED_CONSUMEQUEUE", _ADMIN),
    307: RequestRule("GET_CONSUMER_RUNNING_INFO", _GROUP_NEEDS),
    309: RequestRule("CONSUME_MESSAGE_DIRECTLY", _ADMIN),
    310: RequestRule("SEND_MESSAGE_V2", _SEND_NEEDS),
    315: RequestRule("VIEW_BROKER_STATS_DATA", Answered.FIGURES),
    316: RequestRule("CLEAN_UNUSED_TOPIC", _ADMIN),
    317: RequestRule("GET_BROKER_CONSUME_STATS", Answered.OFFSETS),
    320: RequestRule("SEND_BATCH_MESSAGE", _SEND_NEEDS),
    321: RequestRule("QUERY_CONSUME_QUEUE", Answered.OFFSETS),
    324: RequestRule("SEND_REPLY_MESSAGE", _REPLY_NEEDS),
    325: RequestRule("SEND_REPLY_MESSAGE_V2", _REPLY_NEEDS),
    328: RequestRule("GET_ALL_PRODUCER_INFO", Answered.CLIENTS),
    329: RequestRule("DELETE_EXPIRED_COMMITLOG", _ADMIN),
    351: RequestRule("GET_TOPIC_CONFIG", Answered.NAMES),
    352: RequestRule("GET_SUBSCRIPTIONGROUP_CONFIG", Answered.NAMES),
    361: RequestRule("LITE_PULL_MESSAGE", _PULL_NEEDS),
    370: RequestRule("RECALL_MESSAGE", "`PUB` of the topic"),
    400: RequestRule("QUERY_ASSIGNMENT", _GROUP_NEEDS),
    401: RequestRule("SET_MESSAGE_REQUEST_MODE", _ADMIN),
    402: RequestRule("GET_ALL_MESSAGE_REQUEST_MODE", Answered.NAMES),
    907: RequestRule("GET_BROKER_HA_STATUS", Answered.FIGURES),
    200_050: RequestRule("POP_MESSAGE", f"{_PULL_NEEDS}; the topic is not for retries or dead letters"),
    200_051: RequestRule("ACK_MESSAGE", _PULL_NEEDS),
    200_053: RequestRule("CHANGE_MESSAGE_INVISIBLETIME", _PULL_NEEDS),
    200_054: RequestRule("NOTIFICATION", _PULL_NEEDS),
    200_055: RequestRule("POLLING_INFO", _PULL_NEEDS),
    200_151: RequestRule("BATCH_ACK_MESSAGE", f"{_PULL_NEEDS} of each ack"),
    **{code: RequestRule(text.partition(" ")[0], Answered.REFUSAL) for code, text in REFUSED.items()},
    **{code: RequestRule(name, Answered.REFUSAL) for code, (name, _why) in ABSENT.items()},
    WIRE_VERSION_CODE: RequestRule("the version of our native frames", Answered.FIGURES),
    CHALLENGE_CODE: RequestRule("the challenge to sign for native frames", Answered.FIGURES),
    90_907: RequestRule("`dledger ha-resolve`", _ADMIN),
    90_908: RequestRule("places of damaged records (of `haAllowedHosts`)", Answered.OFFSETS),
    90_909: RequestRule("offer of a sound record (of `haAllowedHosts`)", Answered.CHECK),
}

#: Requests for which any signature is enough.
SIGNED_CODES = frozenset(code for code, rule in RULES.items() if isinstance(rule.needs, Answered))
#: Requests whose rights are reported by L{needs_of}, or by the message at an offset.
NAMING = frozenset(RULES) - SIGNED_CODES - {code for code, rule in RULES.items() if rule.needs == _ADMIN}

#: Requests for the message that begins at the offset in this field, and the right to its topic.
BY_OFFSET: Mapping[int, tuple[str, AccessRight]] = {
    VIEW: ("offset", SUB), SEND_BACK: ("offset", SUB), END_TRANSACTION: ("commitLogOffset", PUB),
}

#: Topics in which messages of other topics wait.
_WAITING = frozenset({HALF_TOPIC, SCHEDULE_TOPIC, DISCARDED_TOPIC, TIMED_TOPIC})
#: How the topics begin that have a group's messages of several topics.
OF_GROUPS = (RETRY, DLQ_PREFIX)


def needs_of(request: RemotingCommand, *, reply_topic: str) -> Iterator[Need]:
    """
    The rights that a request needs.

    @param reply_topic: of the broker's cluster.
    @raise Refused: SYSTEM_ERROR: a field that names topic or group is missing, or the body is malformed.
    """
    code, fields = request.code, Fields(request.ext_fields)
    if code in (SEND, SEND_V2, SEND_BATCH, SEND_REPLY, SEND_REPLY_V2):
        topic = fields.text("topic" if code in (SEND, SEND_REPLY) else "b")
        if code in (SEND_REPLY, SEND_REPLY_V2) and topic == reply_topic:
            yield ANY_TOPIC, SUB
        else:
            name = "properties" if code in (SEND, SEND_REPLY) else "i"
            yield from needs_of_message(topic, fields.text(name, "").encode("utf-8", "surrogatepass"))
    elif code in PULL or code == UPDATE_OFFSET:
        yield fields.text("topic"), SUB
        yield RETRY + fields.text("consumerGroup"), SUB
    elif code == RECALL:
        yield fields.text("topic"), PUB
    elif code == QUERY:
        yield fields.text("topic"), SUB
    elif code == SEND_BACK:
        yield RETRY + fields.text("group"), SUB
    elif code in (LIST_GROUP, RUNNING_INFO):
        yield RETRY + fields.text("consumerGroup"), SUB
    elif code == UNREGISTER and (group := fields.text("consumerGroup", "")):
        yield RETRY + group, SUB
    elif code == HEART_BEAT:
        for data in at_once(read_heartbeat(request.body)).consumers:
            yield RETRY + data.group, SUB
            for topic in data.subscriptions:
                yield topic, SUB
    elif code in POP and code not in REFUSED:
        topic, group = fields.text("topic"), fields.text("consumerGroup")
        yield (normal_topic(topic, group) if code in _OF_POPPED else topic), SUB
        yield RETRY + group, SUB
    elif code == POP_ACKS:
        for topic, group in read_batch_names(request.body):
            yield normal_topic(topic, group), SUB
            yield RETRY + group, SUB
    elif code == ASSIGNMENT:
        yield RETRY + read_group(request.body), SUB
    elif code in LOCKS:
        group, _client, _queues = at_once(read_queues(request.body))
        yield RETRY + group, SUB


def needs_of_message(topic: str, properties: bytes) -> Iterator[Need]:
    """The rights to send a message. @param properties: as in a record."""
    if not topic.startswith(RETRY):
        yield topic, PUB
        return
    yield topic, SUB
    # Its consumers take it for a message of this topic.
    real = decode_properties(properties).get(RETRY_TOPIC, "")
    if real and not real.startswith(RETRY):
        yield real, SUB


@attrs.frozen
class Client:
    """
    What a request says of the client that sends it.

    @ivar consumes: it is a consumer. @ivar producer_groups: those of its heartbeat.
    """

    client_id: str
    consumes: bool = False
    producer_groups: tuple[str, ...] = ()


def client_of(request: RemotingCommand) -> Client | None:
    """
    The client that a request names as its sender; None: none.

    @raise Refused: SYSTEM_ERROR: the body is malformed.
    """
    if request.code == HEART_BEAT:
        said = at_once(read_heartbeat(request.body))
        return Client(said.client_id, bool(said.consumers), said.producer_groups)
    if request.code in LOCKS:
        return Client(at_once(read_queues(request.body))[1])
    return None


def topics_of(topic: str, properties: Mapping[str, str]) -> tuple[str, ...]:
    """
    The topics to which a reader of a message needs the right.

    @param topic: in its record; messages wait in other topics than those of their producers.
    """
    if topic in _WAITING:
        topic = properties.get(REAL_TOPIC) or topic
    real = properties.get(RETRY_TOPIC) if topic.startswith(OF_GROUPS) else None
    return (topic, real) if real and real != topic else (topic,)
