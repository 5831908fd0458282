# -*- test-case-name: tests.broker.consuming.test_subscriptions -*-
"""
A consumer's subscription to a topic: all messages, messages with certain tags, or messages whose properties
match an expression.

A broker compares the hashes of tags, which are in the consume queues; a consumer compares the tags
themselves. Expressions of SQL 92 need the option C{enable_property_filter}: the broker reads and examines
each message for them.

Source: FilterAPI, SubscriptionData, ExpressionMessageFilter, HeartbeatData (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.rocketmq.answering.java_json import read_request
from dledger.rocketmq.answering.pieces import Pieces
from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.consuming.sql92 import SqlError, SqlFilter, compiled
from protocols.wire.documents import name_in, objects_in
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import INT_BITS, LONG_BITS, JsonObject, shown, to_int
from protocols.wire.rocketmq.message import java_hash

#: The most tags of a subscription, topics of one group, and groups of one client.
TAGS_MAX = 1024
TOPICS_MAX = 1024
#: Subscriptions that are read in one piece of a heartbeat, and characters of one that count as another.
SUBSCRIPTIONS, EXPRESSION_CHARACTERS = 64, 64
GROUPS_MAX = 256

SUB_ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"

#: Java's names in a heartbeat.
BROADCASTING = "BROADCASTING"


@attrs.frozen(kw_only=True)
class Subscription:
    """
    A topic and the requested tags.

    @ivar expression: C{*}, or tags separated by C{||}.
    @ivar codes: hashes of the tags; None for any.
    @ivar version: rises when the consumer changes the subscription; ms since 1970.
    @ivar kind: C{TAG} or C{SQL92}; pulls with another kind are refused.
    """

    topic: str
    expression: str = SUB_ALL
    codes: frozenset[int] | None = None
    version: int = 0
    kind: str = TAG

    def document(self) -> JsonObject:
        """As RocketMQ's answers have it."""
        return {
            "classFilterMode": False, "codeSet": sorted(self.codes or ()), "expressionType": self.kind,
            "subString": self.expression, "subVersion": self.version, "tagsSet": [], "topic": self.topic,
        }


def parse_subscription(topic: str, expression: str, *, kind: str = TAG, version: int = 0) -> Subscription:
    """
    Read the subscription of a pull request.

    @raise Refused: SUBSCRIPTION_PARSE_FAILED: too many tags.
    """
    kind = kind or TAG
    if kind != TAG:
        return Subscription(topic=topic, expression=expression, version=version, kind=kind)
    if expression in ("", SUB_ALL):
        return Subscription(topic=topic, expression=expression or SUB_ALL, version=version, kind=kind)
    tags = [tag for tag in (part.strip() for part in expression.split("||")) if tag]
    if len(tags) > TAGS_MAX:
        raise Refused(
            Code.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription of {topic} has {len(tags)} tags, {TAGS_MAX} are allowed",
        )
    codes = frozenset(map(java_hash, tags))
    return Subscription(topic=topic, expression=expression, codes=codes, version=version)


def filter_of(subscription: Subscription, *, is_enabled: bool) -> SqlFilter | None:
    """
    The expression of a subscription; None if it has tags.

    @param is_enabled: whether expressions are allowed here.
    @raise Refused: SYSTEM_ERROR: the kind is not supported. SUBSCRIPTION_PARSE_FAILED: it is not an
        expression.
    """
    if subscription.kind == TAG:
        return None
    if subscription.kind != SQL92 or not is_enabled:
        hint = "; the option enablePropertyFilter=true allows it" if subscription.kind == SQL92 else ""
        raise Refused(
            Code.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {shown(subscription.kind)}{hint}",
        )
    found = compiled(subscription.expression)
    if isinstance(found, SqlError):
        raise Refused(
            Code.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {found}"
        )
    return found


@attrs.frozen(kw_only=True)
class ConsumerData:
    """
    A client's part in a group.

    @ivar consume_type: C{CONSUME_PASSIVELY} of a push consumer, C{CONSUME_ACTIVELY} of others.
    @ivar message_model: C{CLUSTERING} or C{BROADCASTING}.
    """

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: Mapping[str, Subscription] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class Heartbeat:
    """The heartbeat that a client sends every 30 s."""

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producer_groups: tuple[str, ...] = ()


def read_subscription(document: Mapping[str, object]) -> Subscription:
    """
    Read a subscription of a heartbeat.

    @raise BodyError: it is malformed.
    @raise Refused: too many tags.
    """
    topic = name_in(document, "topic")
    expression = document.get("subString") or ""
    if not isinstance(expression, str):
        raise BodyError(f"subString={shown(expression)} is not a text")
    version = to_int(document.get("subVersion"), LONG_BITS, "subVersion") or 0
    kind = name_in(document, "expressionType", TAG)
    found = parse_subscription(topic, expression, kind=kind, version=version)
    codes = document.get("codeSet")
    if found.codes is None or not isinstance(codes, list) or len(codes) > TAGS_MAX:
        return found
    # Add the client's own hashes: it may write its tags in another way.
    given = (to_int(code, INT_BITS, "item of codeSet") for code in codes)
    return attrs.evolve(found, codes=found.codes | {code for code in given if code is not None})


def _read_consumer(document: Mapping[str, object]) -> Pieces[ConsumerData]:
    subscriptions, read = [], 0
    for one in objects_in(document, "subscriptionDataSet", TOPICS_MAX):
        found = read_subscription(one)
        subscriptions.append(found)
        read += 1 + len(found.expression) // EXPRESSION_CHARACTERS
        if read > SUBSCRIPTIONS:
            read = 0
            yield
    return ConsumerData(
        group=name_in(document, "groupName"),
        consume_type=name_in(document, "consumeType", "CONSUME_PASSIVELY"),
        message_model=name_in(document, "messageModel", "CLUSTERING"),
        consume_from=name_in(document, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
        subscriptions={subscription.topic: subscription for subscription in subscriptions},
    )


def read_heartbeat(body: bytes) -> Pieces[Heartbeat]:
    """
    Read the body of request 34, in pieces.

    @raise Refused: SYSTEM_ERROR: it is malformed.
    """
    try:
        document = read_request(body)
        consumers = []
        for number, one in enumerate(objects_in(document, "consumerDataSet", GROUPS_MAX), 1):
            consumers.append((yield from _read_consumer(one)))
            if not number % SUBSCRIPTIONS:
                yield
        return Heartbeat(
            client_id=name_in(document, "clientID"), consumers=tuple(consumers),
            producer_groups=tuple(
                name_in(item, "groupName") for item in objects_in(document, "producerDataSet", GROUPS_MAX)
            ),
        )
    except BodyError as error:
        raise Refused(Code.SYSTEM_ERROR, f"heartbeat: {error}") from error
