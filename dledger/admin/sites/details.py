# -*- test-case-name: tests.admin.test_diagnoses -*-
"""
What the page C{/status} of a member says beyond its L{MemberReport}.

Rule: a member that is ill, or of another version, may say anything: a value of a wrong type counts as one
that was not said, texts and lists are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from dledger.admin.sites.reports import NOT_A_PAGE, MemberReport, one_line
from protocols.wire.ledger.codes import MEMBERS_MAX
from protocols.wire.ledger.readers import ReaderInfo

#: Readers of a page that count, and processes of each; members report 64.
READERS_MAX, HOLDERS_MAX = 100, 8
#: Numbers beyond this were not counted by a member.
_NUMBER_MAX = 2**63
#: In JSON, and in a document of this process.
_ARRAY = (list, tuple)


@attrs.frozen(kw_only=True)
class MachineDetails:
    """Of a state machine, see L{MachineStatus <dledger.node.reporting.status.MachineStatus>}."""

    name: str
    version: int
    state: str
    reason: str
    lag: int
    applied_index: int
    snapshot_index: int
    snapshot_problem: str
    log_kept: str


@attrs.frozen(kw_only=True)
class MemberDetails:
    """
    Numbers of one member: sizes in bytes, times in seconds; -1: not known.

    @ivar flushed_index: last entry on stable storage. @ivar unsynced_bytes: after it.
    @ivar slow_fsync_s: one fsync of a hundred takes more; 0: none is slow, or was measured.
    @ivar tls_expires_s: end of its certificate, seconds since 1970.
    @ivar lag_bytes: of a leader, member id to bytes that it lacks.
    @ivar readers: named readers that it knows, at most L{READERS_MAX}. @ivar reader_count: of all.
    """

    uptime_s: float
    flushed_index: int
    unsynced_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
    store_path: str
    set_aside_files: int
    set_aside_bytes: int
    fsync_failures: int
    slow_fsync_s: float
    stall_s: float
    tls_expires_s: float
    times_ahead_ms: int
    connections_refused: int
    lag_bytes: Mapping[str, int]
    machine: MachineDetails | None
    readers: tuple[ReaderInfo, ...]
    reader_count: int


def details_of(member_id: str, document: Mapping[str, object]) -> MemberDetails:
    """
    @param document: a C{/status} page.
    @raise ValueError: it is not one of this member.
    """
    member = document.get("member")
    if not isinstance(member, dict):
        raise ValueError(NOT_A_PAGE)
    if member.get("self_id") != member_id:
        raise ValueError(f"it is member {one_line(member.get('self_id'))!r}")
    readers = tuple(_readers(document.get("readers")))
    lags = document.get("peer_lag_bytes")
    return MemberDetails(
        uptime_s=_number(document, "uptime_s"),
        flushed_index=int(_number(member, "flushed_index")),
        unsynced_bytes=int(_number(document, "unsynced_bytes")),
        disk_free_bytes=int(_number(document, "disk_free_bytes")),
        disk_total_bytes=int(_number(document, "disk_total_bytes")),
        store_path=_text(document, "store_path"),
        set_aside_files=int(_number(document, "set_aside_files")),
        set_aside_bytes=int(_number(document, "set_aside_bytes")),
        fsync_failures=int(_number(document, "fsync_failures")),
        slow_fsync_s=_exceeded(document.get("fsync")),
        stall_s=_number(document, "stall_s"),
        tls_expires_s=_number(document, "tls_expires_s"),
        times_ahead_ms=int(_number(document, "times_ahead_ms")),
        connections_refused=int(_number(document, "connections_refused")),
        lag_bytes={one_line(name): int(_number(lags, name)) for name in [*lags][:MEMBERS_MAX]}
        if isinstance(lags, dict) else {},
        machine=_machine(document.get("machine")),
        readers=readers,
        reader_count=max(len(readers), int(_number(document, "reader_count"))),
    )


def _number(page: Mapping[str, object], name: str) -> float:
    value = page.get(name)
    return value if isinstance(value, (int, float)) and -_NUMBER_MAX < value < _NUMBER_MAX else -1


def _text(page: Mapping[str, object], name: str) -> str:
    value = page.get(name)
    return one_line(value) if isinstance(value, str) else ""


def _machine(page: object) -> MachineDetails | None:
    if not isinstance(page, dict):
        return None
    return MachineDetails(
        name=_text(page, "name"), version=int(_number(page, "version")), state=_text(page, "state"),
        reason=_text(page, "reason"), lag=int(_number(page, "lag")),
        applied_index=int(_number(page, "applied_index")),
        snapshot_index=int(_number(page, "snapshot_index")),
        snapshot_problem=_text(page, "snapshot_problem"), log_kept=_text(page, "log_kept"),
    )


def _readers(listed: object) -> Iterator[ReaderInfo]:
    for one in listed[:READERS_MAX] if isinstance(listed, _ARRAY) else ():
        if isinstance(one, dict):
            holders = one.get("holders")
            yield ReaderInfo(
                name=_text(one, "name"), next_index=int(_number(one, "next_index")),
                lag=int(_number(one, "lag")), lag_bytes=int(_number(one, "lag_bytes")),
                holders=tuple(map(one_line, holders[:HOLDERS_MAX])) if isinstance(holders, _ARRAY) else (),
            )


def _exceeded(histogram: object) -> float:
    """The bound, in seconds, that one value of a hundred exceeds in a histogram; 0 without values."""
    if not isinstance(histogram, dict):
        return 0.0
    bounds, counts = histogram.get("bounds"), histogram.get("counts")
    if not (isinstance(bounds, _ARRAY) and isinstance(counts, _ARRAY)
            and all(isinstance(one, (int, float)) for one in (*bounds, *counts))):
        return 0.0
    wanted, seen = 0.99 * sum(counts), 0
    for bound, count in zip((0.0, *bounds), counts, strict=False):
        seen += count
        if count and seen >= wanted:
            return float(bound)
    return 0.0


def best_informed(reports: Iterable[MemberReport], details: Mapping[str, MemberDetails]) -> str:
    """
    The member whose page counts for the readers: the leader of the highest term; without its page, the one
    with the most committed entries. Empty if no page was read.
    """
    known = [one for one in reports if one.member_id in details]
    if not known:
        return ""
    return max(known, key=lambda one: (one.role == "leader", one.term, one.committed_index)).member_id
