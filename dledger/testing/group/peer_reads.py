# -*- test-case-name: tests.sim.test_cluster -*-
"""What a simulated member answers to reads of other members, as L{dledger.node.reads.Reads} does."""

from __future__ import annotations

from typing import Any

from dledger.base.errors import DamagedEntryError
from dledger.core.replica import DLedgerCore
from protocols.wire.ledger.codes import Consistency, ResponseCode
from protocols.wire.ledger.messages import EntryBatch, GetRequest, GetResponse, PullRequest, PullResponse


def read_for_peer(
    request: PullRequest | GetRequest, ledger: Any, core: DLedgerCore, *, is_native: bool
) -> PullResponse | GetResponse:
    """
    A PULL is for a member that has lost entries to damage, and so is a GET with C{COMMITTED}. Another GET
    asks for the begin of this ledger as it would ask a Java leader.

    @raise StoreError: the store failed.
    """
    index = request.begin_index
    if isinstance(request, PullRequest):
        code, entries = ResponseCode.UNSUPPORTED, None
        if is_native:
            code, entries = _read(request.begin_index, request.end_index, request.max_bytes, ledger)
        return PullResponse(
            group=request.group, code=code, entries=entries, wire_version=1,
            committed_index=core.committed_index, ledger_begin_index=ledger.ledger_begin_index,
        )
    assert index is not None
    if request.consistency is Consistency.COMMITTED:
        code, entries = _read(index, index, 1, ledger)
        return GetResponse(group=request.group, code=code, entries=entries)
    code, _ = _read(index, index, 1, ledger)
    is_leader = core.leader_id == request.remote_id
    return GetResponse(group=request.group, code=code if is_leader else ResponseCode.NOT_LEADER)


def _read(index: int, end_index: int, max_bytes: int, ledger: Any) -> tuple[ResponseCode, EntryBatch | None]:
    if index > ledger.ledger_end_index:
        return ResponseCode.INDEX_OUT_OF_RANGE, None
    if index < ledger.ledger_begin_index:
        return ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, None
    try:
        return ResponseCode.SUCCESS, ledger.read_range(index, end_index=end_index, max_bytes=max_bytes)
    except DamagedEntryError as error:
        return error.code, None
