# -*- test-case-name: tests.admin.test_broker -*-
"""The dashboard of a broker."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from dledger.admin.dashboard.curves import Curves, curves
from dledger.admin.dashboard.frame import (
    empty_frame,
    facts_of,
    framed_page,
    number_cell,
    size_text,
    span_text,
    table_section,
    text_cell,
)
from dledger.rocketmq.broker.showing.status import BrokerStatus
from protocols.wire.fastjson import JsonObject

#: Consumer groups that the page lists; C{/status} has more.
GROUPS_SHOWN = 100
_LINKS = ("browse", "topics", "actions", "status", "config", "metrics", "openapi.json")


def broker_page(status: BrokerStatus | None, *, at_s: float) -> bytes:
    """
    The page.

    @param status: None: without a number, see L{empty_frame}.
    @param at_s: seconds since 1970.
    """
    if status is None:
        return empty_frame(_LINKS)
    problems = [one for one in (status.problem, status.replication_problem) if one]
    who = f"{status.role} {status.broker_id} of {status.cluster}"
    return framed_page(
        title=status.name, heading=f"Broker {status.name}, {who}", problem="; ".join(problems),
        good="The broker serves.", live=_live(status), numbers=broker_numbers(status, at_s=at_s),
        links=_LINKS,
    )


def broker_numbers(status: BrokerStatus, *, at_s: float) -> JsonObject:
    """The numbers of the curves."""
    gauges: Curves = {
        "Lag of the last consumer group": (max((one.messages for one in status.lags), default=0), "messages"),
        "Puts that wait": (status.waiting_puts, "puts"),
        "Not dispatched": (status.undispatched_bytes, "B"),
    }
    if status.slaves:
        gauges["Lag of the last slave"] = (max(one.gap_bytes for one in status.slaves), "B")
    return curves(at_s, status.uptime_s, gauges, {
        "Messages stored": (status.stored, "messages/s"),
        "Messages delivered": (status.delivered, "messages/s"),
    })


def _live(status: BrokerStatus) -> Iterable[Markup]:
    refusals = ", ".join(f"{pair} {times:,}" for pair, times in sorted(status.refusals.items()))
    offsets = f"{status.begin_offset:,} to {status.end_offset:,}, on disk to {status.flushed_offset:,}"
    yield facts_of("This broker", (
        ("Up", span_text(status.uptime_s)),
        ("Address", status.address or "none yet"),
        ("Log", f"{status.log}, {size_text(max(status.end_offset - status.begin_offset, 0))}"),
        ("Offsets", offsets),
        ("Messages", f"{status.stored:,} stored, {status.delivered:,} delivered since the start"),
        ("Waiting", f"{status.waiting_puts:,} puts, {status.waiting_pulls:,} pulls"),
        ("Topics, groups", f"{status.topics:,}, {status.groups:,}"),
        ("Connections", f"{status.connections:,} open, {status.connections_refused:,} refused"),
        ("Damaged messages", f"{status.bad_records:,} seen"),
        ("Refused requests", refusals or "none"),
        ("Name servers", ", ".join(status.name_servers) or "none"),
        *((("Master", status.master or "none"),) if status.role == "SLAVE" else ()),
    ))
    yield table_section("Consumer groups", "groups", _GROUPS, _group_rows(status),
                        without="None has committed an offset.")
    if status.role != "SLAVE":
        yield table_section("Slaves", "slaves", _SLAVES, (
            (text_cell(one.address), number_cell(one.gap_bytes, 0),
             text_cell("yes" if one.is_in_sync else "no"))
            for one in status.slaves
        ), without="None is connected.")


_GROUPS = (("Group", False), ("Topic", False), ("Queues", True), ("Messages not consumed", True))
_SLAVES = (("Address", False), ("Lag, bytes", True), ("In sync", False))


def _group_rows(status: BrokerStatus) -> Iterable[tuple[Markup, ...]]:
    for one in status.lags[:GROUPS_SHOWN]:
        yield (text_cell(one.group), text_cell(one.topic), number_cell(one.queues, 0),
               number_cell(one.messages, 0))
    hidden = len(status.lags) - GROUPS_SHOWN
    if hidden > 0 or not status.are_lags_whole:
        more = f"{hidden:,} more, see status" if hidden > 0 else "not all queues were looked at"
        yield text_cell(more, "soft"), text_cell(""), text_cell(""), text_cell("")
