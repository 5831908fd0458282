# -*- test-case-name: tests.prices.test_prices -*-
"""
The servers whose requests have prices, with a state as large as asked for, and the requests that cost most.

The requests are those of their routers: a new one has the cases that every request has, and needs a price.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from dledger.admin.broker import BrokerPages
from dledger.admin.name_server import NameServerPages
from dledger.admin.resource import AdminApp
from dledger.admin.sites.reports import MemberReport
from dledger.admin.sites.site import AdminSite
from dledger.rocketmq.answering.answering import AnsweringSide
from dledger.rocketmq.answering.refusals import BODY_BYTES_MAX
from dledger.rocketmq.broker.producing.sending.sends import BATCH_MAX, SEND_CODES
from dledger.rocketmq.metadata.tables import GroupConfig, TopicConfig
from dledger.rocketmq.namesrv.changes import ChangeableConfig
from dledger.rocketmq.namesrv.commands import NameServerCommands
from dledger.rocketmq.namesrv.config import name_server_from_mapping
from dledger.rocketmq.namesrv.key_values import ORDER_NAMESPACE, KeyValues
from dledger.rocketmq.namesrv.routes import RouteTable
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.connection import AnsweringConnection
from protocols.wire.fastjson import REQUEST_VALUES_MAX
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java.json_bodies import encode_request
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendIfRequest,
    AppendOnceRequest,
    AppendRequest,
    GetRequest,
    PullRequest,
    ReaderRequest,
    Request,
)
from protocols.wire.ledger.push_layout import BODIES_MAX, KINDS
from protocols.wire.remoting import RemotingCommand, encode_command
from protocols.wire.rocketmq.broker_frames import PutRequest, ReadRequest, request_parts
from protocols.wire.rocketmq.broker_layout import PUT_BODIES_MAX
from protocols.wire.rocketmq.message import BatchItem, encode_batch
from tests.admin.fakes import FakeNode
from tests.admin.test_broker import FakeBroker
from tests.admin.test_name_server import FakeNameServer
from tests.broker import put_support
from tests.broker.send_support import send_of
from tests.namesrv.support import header_of, run_now
from tests.node import rig as node_rig
from tests.prices.meter import Cost, Meter, MeteredReactor
from tests.protocols.fakes import native_request, remoting_request, turn_of

#: Name of a request, and what is asked: the first case is the smallest.
Cases = dict[str, list[tuple[str, bytes]]]


@attrs.frozen(kw_only=True)
class Server:
    """
    One of them.

    @ivar ask: sends bytes over new connections, all at once: their number, and the cost.
    @ivar requests: the names of all requests that it routes.
    """

    name: str
    ask: Callable[[bytes, int], Cost]
    requests: tuple[str, ...]
    cases: Cases


def _asking(meter: Meter, connect: Callable[[], AnsweringConnection]) -> Callable[[bytes, int], Cost]:
    def ask(data: bytes, together: int) -> Cost:
        connections = [connect() for _ in range(together)]
        try:
            return meter.ask([(one, data) for one in connections])
        finally:
            for one in connections:
                one.abort("measured")

    return ask


def _command(code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> bytes:
    return encode_command(RemotingCommand(
        code=code, opaque=7, version=479, language="JAVA", body=body,
        ext_fields={name: str(value) for name, value in (fields or {}).items()},
    ))


def _bodies(size: int) -> Iterator[tuple[str, bytes]]:
    """Bodies that cost a parser of JSON most, of about C{size} bytes."""
    yield "nested", b'{"a":' + b"[" * (size // 2 - 8) + b"]" * (size // 2 - 8) + b"}"
    yield "values", b'{"a":[' + b"0," * min(REQUEST_VALUES_MAX - 3, size // 2 - 8) + b"0]}"
    yield "escapes", b'{"a":"' + b"\\u1234" * ((size - 16) // 6) + b'"}'
    yield "numbers as keys", b'{"a":{' + b",".join(b"%d:0" % number for number in range(size // 10)) + b"}}"
    yield "loose", b"{" + b"a:[1]," * (4096 // 6 - 2) + b"b:1}"
    yield "no JSON", b"\xff" * size


def _generic(side: AnsweringSide, fields: Mapping[str, object], codes: tuple[int, ...]) -> Cases:
    """Cases that every command has: no fields, all fields, every kind of body, and one that is too long."""
    return {
        str(code): [
            ("empty", _command(code)), ("with fields", _command(code, fields)),
            *((what, _command(code, fields, body)) for what, body in _bodies(BODY_BYTES_MAX)),
            ("too long", _command(code, fields, b"x" * (2 * BODY_BYTES_MAX))),
        ]
        for code in codes
    }


# -- name server -------------------------------------------------------------------------------------------


def _packed(names: list[str], counter: int) -> bytes:
    version = b'{"counter":%d,"stateVersion":0,"timestamp":1}' % counter
    parts = [struct.pack(">i", len(version)), version, struct.pack(">i", len(names))]
    for name in names:
        text = f"{name} 8 8 6 SINGLE_TAG {{}}".encode()
        parts += [struct.pack(">i", len(text)), text]
    return zlib.compress(b"".join([*parts, struct.pack(">i", 2), b"[]"]))


def _empty_blocks(size: int) -> bytes:
    """Blocks of zlib with a code of their own, which take the longest, and no content; eight of 92 bits."""
    eight = bytes.fromhex(
        "04c0810800000000207feb43001c880000000000f2b73e04c0810800000000207feb43001c880000000000f2b73e"
        "04c0810800000000207feb43001c880000000000f2b73e04c0810800000000207feb43001c880000000000f2b73e"
    )
    return b"\x78\x9c" + eight * (size // len(eight))


def _plain(names: list[str], counter: int) -> bytes:
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": {
        "dataVersion": {"counter": counter, "stateVersion": 0, "timestamp": 1},
        "topicConfigTable": {name: {
            "attributes": {}, "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG",
            "topicName": name, "topicSysFlag": 0, "writeQueueNums": 8,
        } for name in names},
        "topicQueueMappingDetailMap": {}, "topicQueueMappingInfoMap": {},
    }}, separators=(",", ":")).encode()


def _registration(names: list[str], *, counter: int = 1, is_packed: bool = True, **who: str) -> bytes:
    body = (_packed if is_packed else _plain)(names, counter)
    return _command(103, {**header_of(**who), "compressed": str(is_packed).lower()}, body)


def name_server(scale: float) -> Server:
    """10,000 brokers with 100,000 topics, and 20,000 keys, times C{scale}."""
    reactor = MeteredReactor()
    meter = Meter(reactor)
    config = name_server_from_mapping({"kv": "kv/kv.json", "change_hosts": "*"})
    routes = RouteTable(config.limits, is_5=config.is_5)
    values = KeyValues(MemoryDisk(), "kv/kv.json", run_now, entries_max=config.kv_entries_max,
                       bytes_max=config.kv_bytes_max)
    values.load()
    commands = NameServerCommands(ChangeableConfig(config), routes, values, clock=reactor)
    side = AnsweringSide(turn_of(reactor), [commands], gate=commands.gate)

    def connect() -> AnsweringConnection:
        connection = side.buildProtocol(None)
        assert connection is not None
        meter.plug(connection)
        return connection

    keeper = connect()
    for number in range(round(10_000 * scale)):
        topics = [f"topic-{number}-{index}" for index in range(8)]
        keeper.dataReceived(_registration(
            ["wide", "second", *topics], name=f"broker-{number}",
            address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:10911",
        ))
        meter.settle()
    table = values._tables.setdefault(ORDER_NAMESPACE, {})
    table |= {f"key-{number}": "broker-1:4" for number in range(round(20_000 * scale))}
    names = [f"a-topic-of-mine-{number}" for number in range(round(100_000 * scale))]
    fields = {**header_of(name="broker-1"), "topic": "wide", "cluster": "C", "namespace": ORDER_NAMESPACE,
              "key": "key-1", "value": "x"}
    cases = _generic(side, fields, side.codes)
    mine = {"name": "mine", "address": "10.9.9.9:1"}
    cases["103"] += [
        *((f"{kind} {counter}", _registration(names, counter=counter, is_packed=is_packed, **mine))
          for counter, (kind, is_packed) in enumerate((("packed", True), ("JSON", False)), 1)),
        ("a bomb", _command(103, {**header_of(), "compressed": "true"}, zlib.compress(bytes(16 << 20)))),
        ("empty blocks", _command(103, {**header_of(), "compressed": "true"}, _empty_blocks(15 << 20))),
        *((what, _command(103, header_of(), body)) for what, body in _bodies(15 << 20)),
    ]
    cases["205"].append(("many topics", _command(205, {"brokerName": "mine"})))
    cases["327"].append(("many topics", _command(327, {"brokerName": "mine"})))
    cases["105"].append(("strict", _command(105, {"topic": "wide", "acceptStandardJsonOnly": "true"})))
    cases["104"].append(("many topics", _command(104, header_of(**mine))))
    return Server(name="name server", ask=_asking(meter, connect), cases=cases,
                  requests=tuple(map(str, side.codes)))


# -- broker ------------------------------------------------------------------------------------------------


def _heartbeat(groups: int, topics: int, tags: int = 1, client: str = "c") -> bytes:
    return json.dumps({
        "clientID": client, "producerDataSet": [{"groupName": f"p-{number}"} for number in range(groups)],
        "consumerDataSet": [{
            "groupName": f"group-{group}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [
                {"topic": f"topic-{topic}", "subString": "||".join(f"t{tag}" for tag in range(tags)),
                 "subVersion": 1, "expressionType": "TAG"} for topic in range(topics)
            ],
        } for group in range(groups)],
    }, separators=(",", ":")).encode()


def broker(scale: float) -> Server:
    """20,000 topics, 10,000 groups, 2,000 clients, 20,000 messages, times C{scale}."""
    reactor = MeteredReactor()
    meter = Meter(reactor)

    class Metered(put_support.Writing):
        """With the clock of the meter."""

        def settle(self) -> None:
            """Whatever is due."""
            meter.settle()

    before = put_support.Clock
    put_support.Clock = lambda: reactor  # type: ignore[assignment,misc]
    try:
        asked = Metered(
            options={"change_hosts": "*"},
            store={"mapped_file_size_commit_log": 64 << 20, "mapped_file_size_consume_queue": 600_000,
                   "max_hash_slot_num": 5000, "max_index_num": 20_000},
        )
    finally:
        put_support.Clock = before  # type: ignore[misc]
    metadata, now_ms = asked.metadata, put_support.WALL_MS
    count = round(20_000 * scale)
    metadata.topics.entries |= {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        for name, queues in (("wide", 1024), *((f"topic-{number}", 8) for number in range(count)))
    }
    for number in range(count // 2):
        metadata.groups.put(GroupConfig(group_name=f"group-{number}"), now_ms)
        for queue_id in range(4):
            metadata.consumer_offsets.commit(f"group-{number}", f"topic-{number}", queue_id, 1, now_ms)
    for queue_id in range(1024):
        metadata.consumer_offsets.commit("group-1", "wide", queue_id, 1, now_ms)
    router = asked.broker.router

    def connect() -> AnsweringConnection:
        connection = router.buildProtocol(None)
        assert connection is not None
        meter.plug(connection)
        return connection

    keeper = connect()
    for number in range(count):
        keeper.dataReceived(encode_command(send_of(
            b"x" * 100, topic=f"topic-{number % 50}", properties=f"KEYS\x01k{number % 100}\x02TAGS\x01a\x02",
        )))
        meter.settle()
    for number in range(count // 10):
        connect().dataReceived(_command(34, {}, _heartbeat(4, 2, client=f"client-{number}")))
    meter.settle()
    fields: dict[str, object] = {
        "consumerGroup": "group-1", "topic": "wide", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1024,
        "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG", "group": "group-1", "producerGroup": "p-1", "statsName": "TOPIC_PUT_NUMS",
        "statsKey": "wide", "timestamp": -1, "offset": 0, "index": 0, "count": 1024, "msgId": "x",
        "clientId": "client-1", "key": "k1", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 60,
        "isOrder": "false", "isForce": "true", "groupName": "group-2", "cleanOffset": "true",
        "readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "invisibleTime": 60_000, "pollTime": 0,
        "bornTime": 0, "initMode": 0, "withAttributes": "true",
    }
    codes = tuple(code for code in router.codes if code not in SEND_CODES)
    cases = _generic(router, fields, codes)
    first = {**fields, "topic": "topic-1"}
    for code in (11, 12, 200050, 200054, 361, 321, 315):
        cases[str(code)].append(("messages", _command(code, first)))
    cases["11"].append(("none fits", _command(11, {**first, "sysFlag": 4, "subscription": "no"})))
    cases["21"].insert(1, ("after a change", _command(17, {**fields, "topic": "new"}) + _command(21)))
    cases["34"] += [
        ("groups", _command(34, {}, _heartbeat(256, 8))), ("topics", _command(34, {}, _heartbeat(4, 700))),
        ("tags", _command(34, {}, _heartbeat(1, 40, 1000))),
    ]
    queues = [{"brokerName": "b", "queueId": number, "topic": "wide"} for number in range(4600)]
    locked = json.dumps({"clientId": "client-1", "consumerGroup": "group-1", "mqSet": queues},
                        separators=(",", ":")).encode()
    cases["41"].append(("queues", _command(41, {}, locked)))
    cases["42"].append(("queues", _command(42, {}, locked)))
    listed = [{"topicName": f"listed-{number}", "readQueueNums": 8} for number in range(4096)]
    cases["18"].append(("topics", _command(18, {}, json.dumps({"topicConfigList": listed}).encode())))
    listed = [{"groupName": f"listed-{number}"} for number in range(4096)]
    cases["225"].append(("groups", _command(225, {}, json.dumps({"groupConfigList": listed}).encode())))
    for code in sorted(SEND_CODES):
        cases[str(code)] = [
            ("small", encode_command(send_of(b"x", code=code, topic="topic-1"))),
            ("large", encode_command(send_of(bytes(4 << 20), code=code, topic="topic-1"))),
            ("properties", encode_command(send_of(
                b"x", code=code, topic="topic-1",
                properties="".join(f"k{number}\x01v\x02" for number in range(4000)),
            ))),
            ("keys", encode_command(send_of(
                b"x", code=code, topic="topic-1",
                properties="KEYS\x01" + " ".join(f"k{number}" for number in range(5000)) + "\x02",
            ))),
        ]
    item = BatchItem(flag=0, body=b"x", properties_data=b"KEYS\x01k\x02")
    cases["320"].append(("most messages", encode_command(send_of(
        encode_batch([item] * BATCH_MAX), code=320, topic="topic-1", batch="true"
    ))))
    cases["native PUT"] = [
        (what, b"".join(request_parts(PutRequest(topic="topic-1", bodies=bodies), 5)))
        for what, bodies in (("small", (b"x",)), ("large", (bytes(4 << 20),)),
                             ("most bodies", (b"x",) * PUT_BODIES_MAX))
    ]
    cases["native READ"] = [
        (f"{size} bytes", b"".join(request_parts(ReadRequest(begin_offset=0, max_bytes=size), 5)))
        for size in (1, 8 << 20)
    ]
    return Server(name="broker", ask=_asking(meter, connect), cases=cases,
                  requests=(*map(str, router.codes), "native PUT", "native READ"))


# -- member ------------------------------------------------------------------------------------------------


def member(scale: float) -> Server:
    """A leader with 100,000 entries, and 1,000 named readers, times C{scale}."""
    reactor = MeteredReactor()
    meter = Meter(reactor)
    before = node_rig.Clock
    node_rig.Clock = lambda: reactor  # type: ignore[assignment,misc]
    try:
        asked = node_rig.Rig(mapped_file_size_for_entry_data=64 << 20, change_hosts="*",
                             mapped_file_size_for_entry_index=32 * 1024 * 1024)
    finally:
        node_rig.Clock = before  # type: ignore[misc]
    asked.lead()

    def connect() -> AnsweringConnection:
        connection: Any = asked.server.buildProtocol(None)
        meter.plug(connection)
        return connection

    here = asked.base()
    keeper = connect()
    for _ in range(round(100 * scale)):
        keeper.dataReceived(native_request(AppendRequest(**here, bodies=(b"x" * 100,) * 1000), 1))
        meter.settle()
    for number in range(round(1000 * scale)):
        keeper.dataReceived(remoting_request(
            ReaderRequest(**here, does="move", name=f"reader-{number}", index=0), 1
        ))
        meter.settle()

    def in_json(kind: RequestCode, body: bytes) -> bytes:
        return encode_command(RemotingCommand(code=int(kind), opaque=1, body=body))

    cases: Cases = {}
    worst: dict[RequestCode, list[Request]] = {
        RequestCode.APPEND: [AppendRequest(**here, bodies=(bytes(4_000_000),)),
                             AppendRequest(**here, bodies=(b"x" * 50,) * BODIES_MAX)],
        RequestCode.APPEND_IF: [AppendIfRequest(**here, body=bytes(4_000_000))],
        RequestCode.APPEND_ONCE: [
            AppendOnceRequest(**here, producer="p", bodies=(b"x" * 50,) * BODIES_MAX)
        ],
        RequestCode.GET: [GetRequest(**here, begin_index=5)],
        RequestCode.PULL: [PullRequest(**here, begin_index=0, max_bytes=4 << 20)],
        RequestCode.READER: [ReaderRequest(**here, does="list")],
    }
    for kind, (request_class, _) in MESSAGES.items():
        smallest = request_class(**here)
        asked_for: list[Request] = [smallest, *worst.get(kind, ())]
        if kind in KINDS:
            cases[f"native {kind.name}"] = [
                (f"native {number}", native_request(one, 1)) for number, one in enumerate(asked_for)
            ]
        text = encode_request(smallest)[:-1] + b',"x":'
        cases[f"{kind.name} in JSON"] = [
            *((f"JSON {number}", in_json(kind, encode_request(one))) for number, one in enumerate(asked_for)
              if len(getattr(one, "bodies", ())) <= 1),
            *((what, in_json(kind, text + body + b"}")) for what, body in _bodies(60 * 1024)),
            ("too long", in_json(kind, text + b'"' + b"x" * (1 << 20) + b'"}')),
        ]
    return Server(
        name="member", ask=_asking(meter, connect), cases=cases,
        requests=(
            *(f"native {kind.name}" for kind in KINDS), *(f"{kind.name} in JSON" for kind in RequestCode)
        ),
    )


# -- pages -------------------------------------------------------------------------------------------------


def _pages(name: str, pages: Any, reactor: MeteredReactor) -> Server:
    """All pages of a Klein app, each asked shortly, as a browser, and with as much as a request may have."""
    app = pages.app
    site = AdminSite(app.resource(), cast("Any", reactor), hosts=("localhost",))
    meter = Meter(reactor)

    def ask(data: bytes, together: int) -> Cost:
        channels: list[Any] = []
        for _ in range(together):
            channels.append(site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 5)))
            channels[-1].makeConnection(StringTransport())
        reactor.rightNow += 5  # nothing that was kept is sent again
        meter.settle()
        try:
            return meter.turns(lambda: [one.dataReceived(data) for one in channels])
        finally:
            for one in channels:
                one.connectionLost(Failure(ConnectionDone()))

    cases: Cases = {}
    for rule in app.url_map.iter_rules():
        method = b"POST" if "POST" in rule.methods else b"GET"
        head = b"%s %s%%s HTTP/1.1\r\nHost: localhost\r\n%%s\r\n" % (method, rule.rule.encode())
        cases[rule.rule] = [
            ("plain", head % (b"", b"")), ("browser", head % (b"", b"Accept: text/html\r\n")),
            ("headers", head % (b"", b"".join(b"a%d: b\r\n" % number for number in range(400)))),
            ("query", head % (b"?" + b"a=1&" * 490, b"")),
            ("long query", head % (b"?" + b"a=1&" * 3500, b"")),
        ]
    return Server(name=name, ask=ask, requests=tuple(cases), cases=cases)


def member_pages(scale: float) -> Server:
    """Those of a member, and of its group."""
    reactor = MeteredReactor()

    async def survey() -> tuple[MemberReport, ...]:
        return tuple(MemberReport(member_id=f"n{number}", address="a:1", source="log") for number in range(7))

    app = AdminApp(FakeNode(), survey, reactor, (), wall_s=lambda: 1.7e9)
    return _pages("member's page", app, reactor)


def broker_pages(scale: float) -> Server:
    """Those of a broker."""
    reactor = MeteredReactor()
    pages = BrokerPages(FakeBroker(), reactor.seconds, wall_s=lambda: 1.7e9)
    return _pages("broker's page", pages, reactor)


def name_server_pages(scale: float) -> Server:
    """Those of a name server with 10,000 brokers, times C{scale}."""
    reactor = MeteredReactor()
    source = FakeNameServer()
    source.number = round(10_000 * scale)
    return _pages("name server's page", NameServerPages(source, reactor), reactor)


SERVERS: Mapping[str, Callable[[float], Server]] = {
    "name server": name_server, "broker": broker, "member": member, "member's page": member_pages,
    "broker's page": broker_pages, "name server's page": name_server_pages,
}
