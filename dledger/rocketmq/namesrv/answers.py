# -*- test-case-name: tests.namesrv.test_answers -*-
"""
The bodies of a name server's answers, as fastjson writes them: keys sorted, no blanks.

Integer keys are quoted for clients that read strict JSON only; then all text beyond ASCII is escaped, too.

Source: TopicRouteData, ClusterInfo, TopicList, BrokerMemberGroup (4.9.8, 5.3.3); fastjson 1.2.83 as observed.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from dledger.rocketmq.answering.java_json import DataVersion
from dledger.rocketmq.answering.pieces import ITEMS_A_PIECE, Pieces, at_once
from dledger.rocketmq.namesrv.routes import BrokerGroup, RouteTable, TopicRoute

#: Clients of this version read strict JSON only: V4_9_4.
STRICT_VERSION = 401

#: Texts that are sorted in one piece.
SORTED = 5000

_T = TypeVar("_T")

_ESCAPED = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r",
}
_USUAL = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_STRICT = re.compile('["\\\\/\x00-\x1f\x7f-\U0010ffff]')


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character == "/":
        return "\\/"
    if character in _ESCAPED:
        return _ESCAPED[character]
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))


class _Writer:
    """@param is_strict: quote integer keys, and escape text beyond ASCII. @param is_5: fields of 5.x."""

    def __init__(self, *, is_strict: bool, is_5: bool) -> None:
        self._pattern = _STRICT if is_strict else _USUAL
        self._mark = '"' if is_strict else ""
        self._is_5 = is_5

    def text(self, text: str) -> str:
        """A text in quotes."""
        return f'"{self._pattern.sub(_escape, text)}"'

    def texts(self, texts: Iterable[str]) -> str:
        """A list of texts."""
        return "[" + ",".join(map(self.text, texts)) + "]"

    def items(self, items: Iterable[_T], text: Callable[[_T], str]) -> Pieces[str]:
        """Items with commas between them; in pieces."""
        parts = []
        for number, one in enumerate(items, 1):
            parts.append(text(one))
            if not number % ITEMS_A_PIECE:
                yield
        return ",".join(parts)

    def pair(self, pair: tuple[str, str]) -> str:
        """A key with its text."""
        return f"{self.text(pair[0])}:{self.text(pair[1])}"

    def addresses(self, addresses: Mapping[int, str]) -> str:
        """Id to address."""
        mark = self._mark
        return "{" + ",".join(
            f"{mark}{number}{mark}:{self.text(address)}" for number, address in sorted(addresses.items())
        ) + "}"

    def group(self, group: BrokerGroup) -> str:
        """The brokers of one name."""
        text = (f'{{"brokerAddrs":{self.addresses(group.addresses)},"brokerName":{self.text(group.name)},'
                f'"cluster":{self.text(group.cluster)}')
        if self._is_5:
            text += f',"enableActingMaster":{"true" if group.acting else "false"}'
            if group.zone is not None:
                text += f',"zoneName":{self.text(group.zone)}'
        return text + "}"


def route_body(
    route: TopicRoute, *, order_conf: str | None, is_strict: bool, is_5: bool
) -> Pieces[bytes]:
    """GET_ROUTEINFO_BY_TOPIC. @param order_conf: queues of an ordered topic; None: not reported."""
    write = _Writer(is_strict=is_strict, is_5=is_5)
    queues = yield from write.items(route.queues.items(), lambda pair: (
        f'{{"brokerName":{write.text(pair[0])},"perm":{pair[1].perm},"readQueueNums":'
        f'{pair[1].read_queue_nums},"topicSysFlag":{pair[1].sys_flag},"writeQueueNums":'
        f'{pair[1].write_queue_nums}}}'
    ))
    servers = ",".join(
        f"{write.text(address)}:{write.texts(listed)}"
        for address, listed in sorted(route.filter_servers.items())
    )
    order = "" if order_conf is None else f'"orderTopicConf":{write.text(order_conf)},'
    groups = yield from write.items(route.groups, write.group)
    return (
        f'{{"brokerDatas":[{groups}],"filterServerTable":{{{servers}}},{order}"queueDatas":[{queues}]}}'
    ).encode()


def cluster_body(table: RouteTable, *, is_5: bool) -> Pieces[bytes]:
    """GET_BROKER_CLUSTER_INFO."""
    write = _Writer(is_strict=False, is_5=is_5)
    groups = yield from write.items(
        sorted(table.groups.items()), lambda pair: f"{write.text(pair[0])}:{write.group(pair[1])}"
    )
    clusters = []
    for name, names in sorted(table.clusters.items()):
        clusters.append(f"{write.text(name)}:[{yield from write.items(sorted(names), write.text)}]")
    return f'{{"brokerAddrTable":{{{groups}}},"clusterAddrTable":{{{",".join(clusters)}}}}}'.encode()


def topics_body(topics: Iterable[str], *, address: str | None = None) -> Pieces[bytes]:
    """A list of topics. @param address: of a broker, in the list of system topics."""
    write = _Writer(is_strict=False, is_5=False)
    first = "" if address is None else f'"brokerAddr":{write.text(address)},'
    listed = yield from write.items((yield from in_order(topics)), write.text)
    return f'{{{first}"topicList":[{listed}]}}'.encode()


def in_order(texts: Iterable[str]) -> Pieces[list[str]]:
    """Texts in order; sorted in pieces, which are merged pair by pair."""
    rest = list(texts)
    runs = []
    for at in range(0, len(rest), SORTED):
        runs.append(sorted(rest[at : at + SORTED]))
        yield
    merged = []
    for number, one in enumerate(heapq.merge(*runs), 1):
        merged.append(one)
        if not number % ITEMS_A_PIECE:
            yield
    return merged


def table_body(table: Mapping[str, str]) -> Pieces[bytes]:
    """The values of a namespace."""
    write = _Writer(is_strict=False, is_5=False)
    items = yield from write.items(sorted(table.items()), write.pair)
    return f'{{"table":{{{items}}}}}'.encode()


def configuration_body(namespaces: Mapping[str, Mapping[str, str]]) -> bytes:
    """The file of the KV configuration."""
    write = _Writer(is_strict=False, is_5=False)
    tables = ",".join(
        f"{write.text(name)}:{{{at_once(write.items(sorted(table.items()), write.pair))}}}"
        for name, table in namespaces.items()
    )
    return f'{{"configTable":{{{tables}}}}}'.encode()


def version_body(version: DataVersion, *, is_5: bool) -> bytes:
    """QUERY_DATA_VERSION."""
    state = f'"stateVersion":{version.state_version or 0},' if is_5 else ""
    return f'{{"counter":{version.counter},{state}"timestamp":{version.timestamp}}}'.encode()


def member_group_body(cluster: str | None, name: str | None, addresses: Mapping[int, str]) -> bytes:
    """GET_BROKER_MEMBER_GROUP."""
    write = _Writer(is_strict=False, is_5=True)
    said = "".join(
        f',"{key}":{write.text(value)}' for key, value in (("brokerName", name), ("cluster", cluster))
        if value is not None
    )
    return f'{{"brokerMemberGroup":{{"brokerAddrs":{write.addresses(addresses)}{said}}}}}'.encode()
