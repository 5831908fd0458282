# -*- test-case-name: tests.wire.test_push -*-
"""
The layouts of native frames, declared with construct.

Every declaration has only big-endian numbers of fixed size, so that its C{struct.Struct} is derived from it
(L{protocols.wire.layout.struct_of}). L{protocols.wire.ledger.messages} explains the fields; C{..._length}
is the length in bytes of a text after the fixed part, -1 for "none". docs/wire-format.md shows the layouts
as tables, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping

from construct import Int8ub, Int16sb, Int32sb, Int32ub, Int64sb, Struct

from protocols.wire.ledger.codes import RequestCode

#: Number of a message in the frame header. All others are JSON on every connection.
KINDS: Mapping[RequestCode, int] = {
    RequestCode.METADATA: 1,
    RequestCode.APPEND: 2,
    RequestCode.GET: 3,
    RequestCode.PULL: 4,
    RequestCode.VOTE: 5,
    RequestCode.HEART_BEAT: 6,
    RequestCode.PUSH: 7,
    RequestCode.LEADERSHIP_TRANSFER: 8,
    RequestCode.APPEND_ONCE: 9,
}

#: Most bodies in one APPEND: a member takes some milliseconds for them; members in one METADATA answer.
BODIES_MAX = 16384
#: Most bodies of one APPEND_ONCE that readers leave out.
HIDDEN_BODIES_MAX = 64
PEERS_MAX = 1024

# Every fixed part starts with these fields.
_BASE = (
    "term" / Int64sb,
    "wire_version" / Int32sb,
    "group_length" / Int16sb,
    "remote_id_length" / Int16sb,
    "local_id_length" / Int16sb,
    "leader_id_length" / Int16sb,
)
_CODE = ("code" / Int32sb,)
# Records follow; without entries these three are -1, 0, -1 and no records follow.
_BATCH = (
    "first_index" / Int64sb,
    "count" / Int32sb,
    "entries_term" / Int64sb,  # term of the last entry
)

METADATA_REQUEST_DECLARATION = Struct(*_BASE)
METADATA_RESPONSE_DECLARATION = Struct(
    *_BASE,
    *_CODE,
    "begin_index" / Int64sb,
    "end_index" / Int64sb,
    "committed_index" / Int64sb,
    "role_length" / Int16sb,
    "peers_count" / Int16sb,  # number of peers that follow, see PEER_DECLARATION
)
PEER_DECLARATION = Struct(
    "id_length" / Int16sb,
    "address_length" / Int16sb,  # then the bytes of both
)
APPEND_REQUEST_DECLARATION = Struct(*_BASE, "count" / Int32sb)  # then "count" lengths, then the bodies
BODY_LENGTH_DECLARATION = Struct("body_length" / Int32sb)
HIDDEN_BODY_DECLARATION = Struct("number" / Int32sb)  # of a body that readers leave out
APPEND_RESPONSE_DECLARATION = Struct(
    *_BASE, *_CODE, "index" / Int64sb, "pos" / Int64sb, "count" / Int32sb
)
APPEND_ONCE_REQUEST_DECLARATION = Struct(
    *_BASE,
    "producer_length" / Int16sb,
    "sequence" / Int64sb,
    "hidden_count" / Int16sb,
    "count" / Int32sb,  # then the id of the producer, "hidden_count" numbers of bodies, then as in APPEND
)
APPEND_ONCE_RESPONSE_DECLARATION = Struct(
    *_BASE,
    *_CODE,
    "index" / Int64sb,
    "pos" / Int64sb,
    "count" / Int32sb,
    "is_repeated" / Int8ub,  # 0 or 1
    "last_sequence" / Int64sb,
)
GET_REQUEST_DECLARATION = Struct(
    *_BASE,
    "has_begin_index" / Int8ub,  # 0: no index was given
    "begin_index" / Int64sb,
    "max_size" / Int32sb,
    "consistency" / Int8ub,  # 0 linearizable, 1 committed
)
GET_RESPONSE_DECLARATION = Struct(*_BASE, *_CODE, *_BATCH)
PULL_REQUEST_DECLARATION = Struct(
    *_BASE,
    "node_id_length" / Int16sb,
    "begin_index" / Int64sb,
    "end_index" / Int64sb,
    "max_bytes" / Int32sb,
    "wait_ms" / Int32sb,
    "consistency" / Int8ub,  # 0 linearizable, 1 committed
)
PULL_RESPONSE_DECLARATION = Struct(
    *_BASE, *_CODE, "ledger_begin_index" / Int64sb, "committed_index" / Int64sb, *_BATCH
)
VOTE_REQUEST_DECLARATION = Struct(
    *_BASE,
    "ledger_end_index" / Int64sb,
    "ledger_end_term" / Int64sb,
    "pre_vote" / Int8ub,  # 0 or 1
    "transfer" / Int8ub,  # 0 or 1
)
VOTE_RESPONSE_DECLARATION = Struct(
    *_BASE, *_CODE, "vote_result" / Int8ub, "pre_vote" / Int8ub, "clock_ms" / Int64sb
)
HEART_BEAT_REQUEST_DECLARATION = Struct(*_BASE, "heart_beat_interval_ms" / Int32sb)
HEART_BEAT_RESPONSE_DECLARATION = Struct(*_BASE, *_CODE, "clock_ms" / Int64sb)
PUSH_REQUEST_DECLARATION = Struct(
    *_BASE,
    "type" / Int8ub,  # 0 APPEND, 1 COMMIT, 2 COMPARE, 3 TRUNCATE, 4 an APPEND of a chunk
    "is_batch" / Int8ub,  # 0 or 1
    "commit_index" / Int64sb,
    *_BATCH,
)
#: Type of a push that is an APPEND of a chunk: its sums follow, then "count" index units, then the records.
CHUNK_TYPE = 4
CHUNK_SUMS_DECLARATION = Struct("records_crc" / Int32ub, "units_crc" / Int32ub)
PUSH_RESPONSE_DECLARATION = Struct(
    *_BASE,
    *_CODE,
    "has_index" / Int8ub,  # 0: the answer to a COMMIT
    "index" / Int64sb,
    "count" / Int32sb,
    "begin_index" / Int64sb,
    "end_index" / Int64sb,
)
LEADERSHIP_TRANSFER_REQUEST_DECLARATION = Struct(
    *_BASE,
    "transfer_id_length" / Int16sb,
    "transferee_id_length" / Int16sb,
    "take_leadership_ledger_index" / Int64sb,
)
LEADERSHIP_TRANSFER_RESPONSE_DECLARATION = Struct(*_BASE, *_CODE)

#: Fixed parts of requests and answers.
REQUEST_DECLARATIONS: Mapping[RequestCode, Struct] = {
    RequestCode.METADATA: METADATA_REQUEST_DECLARATION,
    RequestCode.APPEND: APPEND_REQUEST_DECLARATION,
    RequestCode.GET: GET_REQUEST_DECLARATION,
    RequestCode.PULL: PULL_REQUEST_DECLARATION,
    RequestCode.VOTE: VOTE_REQUEST_DECLARATION,
    RequestCode.HEART_BEAT: HEART_BEAT_REQUEST_DECLARATION,
    RequestCode.PUSH: PUSH_REQUEST_DECLARATION,
    RequestCode.LEADERSHIP_TRANSFER: LEADERSHIP_TRANSFER_REQUEST_DECLARATION,
    RequestCode.APPEND_ONCE: APPEND_ONCE_REQUEST_DECLARATION,
}
RESPONSE_DECLARATIONS: Mapping[RequestCode, Struct] = {
    RequestCode.METADATA: METADATA_RESPONSE_DECLARATION,
    RequestCode.APPEND: APPEND_RESPONSE_DECLARATION,
    RequestCode.GET: GET_RESPONSE_DECLARATION,
    RequestCode.PULL: PULL_RESPONSE_DECLARATION,
    RequestCode.VOTE: VOTE_RESPONSE_DECLARATION,
    RequestCode.HEART_BEAT: HEART_BEAT_RESPONSE_DECLARATION,
    RequestCode.PUSH: PUSH_RESPONSE_DECLARATION,
    RequestCode.LEADERSHIP_TRANSFER: LEADERSHIP_TRANSFER_RESPONSE_DECLARATION,
    RequestCode.APPEND_ONCE: APPEND_ONCE_RESPONSE_DECLARATION,
}
