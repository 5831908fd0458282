# -*- test-case-name: tests.fuzz.test_decoders -*-
"""
The fuzz target of the name server: registrations of every form, and single topics.

Any bytes yield a registration or L{BodyError}; the tables take each registration, answer for it in JSON that
can be read, and are empty again when its broker is forgotten.
"""

from __future__ import annotations

import json
import random
import zlib

from dledger.rocketmq.answering.java_json import read_document
from dledger.rocketmq.answering.pieces import at_once
from dledger.rocketmq.answering.refusals import Refused
from dledger.rocketmq.namesrv.answers import cluster_body, route_body, topics_body
from dledger.rocketmq.namesrv.registrations import BrokerTopics, read_registration, read_topic_route
from dledger.rocketmq.namesrv.routes import Registering, RouteLimits
from protocols.wire.errors import BodyError
from tests.fuzz.mutation import damaged, damaged_json, loosely
from tests.namesrv.support import WholeRoutes
from tests.namesrv.test_registrations import GOLDEN_5, packed

_JSON = (
    GOLDEN_5,
    b'{"topicConfigTable":{"A":{"topicName":"A2","readQueueNums":1}},"dataVersion":{"counter":1}}',
    b'{"queueDatas":[{"brokerName":"bk","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
)
_PACKED = (packed(b"A 4 5 6 SINGLE_TAG", b'B 4 5 6 SINGLE_TAG {"a": "b"}', tail=bytes(4)), packed())
_UNPACKED = tuple(map(zlib.decompress, _PACKED))
_WHO = Registering(cluster="C", name="bk", broker_id=0, address="a:1", ha_address="a:2")


def fuzz_name_server(rng: random.Random) -> None:
    """One damaged body, read in one of the forms."""
    is_compressed = rng.random() < 0.4
    if is_compressed:
        body = (
            damaged(rng.choice(_PACKED), _PACKED, rng) if rng.random() < 0.3
            else zlib.compress(damaged(rng.choice(_UNPACKED), _UNPACKED, rng))
        )
    elif rng.random() < 0.5:
        body = damaged(rng.choice(_JSON), _JSON, rng)
    else:
        document = damaged_json(json.loads(rng.choice(_JSON)), rng)
        text = loosely(document, rng) if rng.random() < 0.5 else json.dumps(document)
        body = text.encode("utf-8", "surrogatepass")
    try:
        read_topic_route(body)
    except BodyError:
        pass
    version = rng.choice((0, 36, 37, 409, 479))
    try:
        topics = at_once(read_registration(
            body, version=version, is_compressed=is_compressed, topics_max=RouteLimits().topics_max
        ))
    except BodyError:
        return
    _check_tables(topics, rng)


def _check_tables(topics: BrokerTopics, rng: random.Random) -> None:
    table = WholeRoutes(RouteLimits(topics_max=3, topic_bytes_max=200), is_5=rng.random() < 0.5)
    try:
        table.register(_WHO, topics, 1, 0.0)
    except Refused:
        assert not table.live and not table.topics and not table.groups
        return
    assert len(table.topics) <= 3 and set(table.topics) == set(topics.topics)
    listed = read_document(at_once(topics_body(table.topics)))["topicList"]
    assert sorted(listed) == sorted(table.topics)
    assert read_document(at_once(cluster_body(table, is_5=True)))["clusterAddrTable"] == {"C": ["bk"]}
    for name in table.topics:
        route = table.route(name)
        assert route is not None
        strict = json.loads(at_once(route_body(route, order_conf=name, is_strict=True, is_5=True)))
        assert strict["orderTopicConf"] == name
        loose = at_once(route_body(route, order_conf=name, is_strict=False, is_5=True))
        assert read_document(loose) == strict
    table.channel_lost(1)
    assert not table.live and not table.topics and not table.groups and not table.clusters
    assert (table.routes, table.topic_bytes) == (0, 0)
