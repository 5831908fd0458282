# -*- test-case-name: tests.wire.test_bounds -*-
"""
The largest terms, indexes and positions of the protocol.

Java reads and writes 64 bits of each. No group comes near these bounds by its own work, so a number above
them is damage or an attack; adding one to it must never overflow what the wire and the files can hold.

Rule: both decoders refuse a message with a larger number, whoever sent it. Indexes that a client asks for
(GET, PULL) are not bounded here: its answer is 410, as in Java.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocols.wire.errors import BodyError
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse
from protocols.wire.ledger.messages import (
    AppendIfResponse,
    AppendOnceResponse,
    AppendResponse,
    HeartBeatRequest,
    LeadershipTransferRequest,
    LedgerMessage,
    MetadataResponse,
    PullResponse,
    PushEntryRequest,
    PushEntryResponse,
    SequenceResponse,
    VoteRequest,
)

#: The largest term that a member may reach.
TERM_MAX = 1 << 62

#: A member refuses a term that is further than this above its own: a group needs years for this number of
#: elections.
TERM_JUMP_MAX = 1 << 32

#: The largest index of an entry: its place in the index file, 32 bytes an entry, still fits 64 bits.
INDEX_MAX = 1 << 56

#: The largest stream offset of a record, in bytes.
POSITION_MAX = 1 << 62

#: The messages that have numbers besides the term, and their indexes.
_INDEXES: Mapping[type[LedgerMessage], tuple[str, ...]] = {
    HeartBeatRequest: (),
    VoteRequest: ("ledger_end_index",),
    PushEntryRequest: ("commit_index",),
    PushEntryResponse: ("index", "begin_index", "end_index"),
    MetadataResponse: ("begin_index", "end_index", "committed_index"),
    AppendResponse: ("index",),
    AppendIfResponse: ("index",),
    AppendOnceResponse: ("index",),
    SequenceResponse: ("last_sequence", "index"),
    PullResponse: ("ledger_begin_index", "committed_index"),
    LeadershipTransferRequest: ("take_leadership_ledger_index",),
    SnapshotRequest: ("index", "index_term", "offset"),
    SnapshotResponse: ("index", "index_term", "size", "offset"),
}


def check_bounds(message: LedgerMessage) -> None:
    """
    Check the numbers of a decoded message; L{protocols.wire.ledger.record_checks.check_records} checks its
    entries.

    @raise BodyError: a term, an index or a position is above its bound, or an interval is negative.
    """
    if message.term > TERM_MAX:
        raise BodyError(f"term={message.term}, at most {TERM_MAX} is allowed")
    names = _INDEXES.get(type(message))
    if names is None:
        return
    for name in names:
        index: int | None = getattr(message, name)
        if index is not None and index > INDEX_MAX:
            raise BodyError(f"{name}={index}, at most {INDEX_MAX} is allowed")
    if isinstance(message, VoteRequest) and message.ledger_end_term > TERM_MAX:
        raise BodyError(f"ledger_end_term={message.ledger_end_term}, at most {TERM_MAX} is allowed")
    if isinstance(message, AppendResponse) and message.pos > POSITION_MAX:
        raise BodyError(f"pos={message.pos}, at most {POSITION_MAX} is allowed")
    if isinstance(message, HeartBeatRequest) and message.heart_beat_interval_ms < 0:
        raise BodyError(f"heart_beat_interval_ms={message.heart_beat_interval_ms} is negative")
