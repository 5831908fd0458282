# -*- test-case-name: tests.admin.test_name_server -*-
"""The dashboard of a name server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from dledger.admin.dashboard.curves import curves
from dledger.admin.dashboard.frame import (
    empty_frame,
    facts_of,
    framed_page,
    size_text,
    span_text,
    table_section,
    text_cell,
)
from dledger.rocketmq.namesrv.status import LiveBrokerStatus, NameServerStatus
from protocols.wire.fastjson import JsonObject

#: Brokers that the page lists; C{/brokers} has all.
BROKERS_SHOWN = 50
_LINKS = ("brokers", "status", "config", "metrics", "openapi.json")
_BROKERS = (
    ("Cluster", False), ("Broker", False), ("Id", True), ("Address", False), ("For slaves", False),
    ("Heard", False),
)


def name_server_page(
    status: NameServerStatus | None, brokers: Sequence[LiveBrokerStatus] = (), *, at_s: float = 0.0
) -> bytes:
    """
    The page.

    @param status: None: without a number, see L{empty_frame}.
    @param brokers: the first ones that live.
    @param at_s: seconds since 1970.
    """
    if status is None:
        return empty_frame(_LINKS)
    return framed_page(
        title=status.address or "name server", heading=f"Name server {status.address}",
        problem=status.problem, good="The name server serves.", live=_live(status, brokers),
        numbers=_numbers(status, at_s), links=_LINKS,
    )


def _numbers(status: NameServerStatus, at_s: float) -> JsonObject:
    return curves(
        at_s, status.uptime_s,
        {"Connections": (status.connections, "connections"), "Brokers": (status.brokers, "brokers")},
        {"Requests": (status.requests, "requests/s"),
         "Registrations": (status.registrations, "registrations/s")},
    )


def _live(status: NameServerStatus, brokers: Sequence[LiveBrokerStatus]) -> Iterable[Markup]:
    refusals = ", ".join(f"{pair} {times:,}" for pair, times in sorted(status.refusals.items()))
    names = f"{status.broker_names:,} at {status.brokers:,} addresses"
    yield facts_of("This name server", (
        ("Up", span_text(status.uptime_s)),
        ("Answers as", f"RocketMQ {status.answers_as}"),
        ("Clusters, brokers", f"{status.clusters:,}, {names}"),
        ("Topics", f"{status.topics:,}, {status.routes:,} routes"),
        ("KV configuration", f"{status.kv_entries:,} entries, {size_text(status.kv_bytes)}"),
        ("Connections", f"{status.connections:,} open, {status.connections_refused:,} refused"),
        ("Brokers that went", f"{status.brokers_expired:,} silent, {status.brokers_lost:,} disconnected"),
        ("Overtaking", f"{status.overtaken:,} taken, {status.overtaking_refused:,} refused"),
        ("Refused requests", refusals or "none"),
    ))
    more = f" (of {status.brokers:,})" if status.brokers > len(brokers) else ""
    yield table_section(f"Brokers{more}", "brokers", _BROKERS, (
        (text_cell(one.cluster), text_cell(", ".join(one.names)),
         text_cell(", ".join(map(str, one.broker_ids))), text_cell(one.address), text_cell(one.ha_address),
         text_cell(f"{span_text(one.heard_s)} ago")) for one in brokers
    ), without="None is registered.")
