# -*- test-case-name: tests.admin.test_status_document -*-
"""
The names of C{/status}: the document is flat, whatever parts the status of a node has.

Programs of operators read these names: those of the fields, each unique.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator

import attrs

from dledger.node.reporting.status import (
    ConnectionsStatus,
    Counters,
    NodeStatus,
    PeersStatus,
    RoleCounters,
    StoreStatus,
)

#: The parts of a status whose values are facts of the document.
_PARTS = (ConnectionsStatus, Counters, PeersStatus, RoleCounters, StoreStatus)
#: The names of facts that are not those of their fields.
_NAMES = {
    "connections.incoming": "connections",
    "connections.refused": "connections_refused",
    "connections.replaced": "connections_replaced",
    "peers.addresses": "peer_addresses",
    "peers.connected": "peers_connected",
    "peers.lag_bytes": "peer_lag_bytes",
    "store.free_bytes": "disk_free_bytes",
    "store.is_full": "is_disk_full",
    "store.path": "store_path",
    "store.total_bytes": "disk_total_bytes",
}


def _facts(kind: type, before: str = "") -> Iterator[tuple[str, str]]:
    for field, declared in typing.get_type_hints(kind).items():
        way = before + field
        if declared in _PARTS:
            yield from _facts(declared, f"{way}.")
        elif not field.startswith("_"):
            yield _NAMES.get(way, field), way


#: Name in the document, and the way to the value in L{NodeStatus}.
FACTS: tuple[tuple[str, str], ...] = tuple(_facts(NodeStatus))


def status_document(status: NodeStatus) -> dict[str, object]:
    """The facts of a status by their names in the document, as plain values."""
    whole = attrs.asdict(status, recurse=True)
    return {name: _value(whole, way) for name, way in FACTS}


def _value(whole: object, way: str) -> object:
    for step in way.split("."):
        assert isinstance(whole, dict)
        whole = whole[step]
    return whole


def status_kinds() -> dict[str, object]:
    """The annotation of each fact by its name in the document."""
    return {name: _kind(NodeStatus, way) for name, way in FACTS}


def _kind(kind: object, way: str) -> object:
    for step in way.split("."):
        assert isinstance(kind, type)
        kind = typing.get_type_hints(kind)[step]
    return kind
