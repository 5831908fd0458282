# -*- test-case-name: tests.wire.test_push -*-
"""
Native frames of version 1, one or more of every message, all with opaque 7.

A change here is another version of the format (docs/wire-format.md, "Compatibility"): members that run
the old one read the new bytes wrongly, or not at all.
"""

from __future__ import annotations

from typing import Any

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency, PushType, VoteResult
from protocols.wire.ledger.messages import (
    AppendOnceRequest,
    AppendOnceResponse,
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    PullResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from tests.wire.golden import HELLO

_BASE: dict[str, Any] = {
    "group": "g", "remote_id": "n1", "local_id": "n0", "leader_id": "", "term": 3, "wire_version": 1
}
_ANSWER: dict[str, Any] = {"group": "g", "leader_id": "n0", "term": -1}

#: Message and frame: header, base, the message's own numbers, texts and payload.
NATIVE_FRAMES: tuple[tuple[Request | Response, bytes], ...] = (
    (
        MetadataRequest(**_BASE),
        bytes.fromhex(
            "d1 01 01 00 00000007 00000019"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "676e316e30"
        ),
    ),
    (
        MetadataResponse(
            **_ANSWER, peers={"n0": "h:1", "n1": "h:22"}, begin_index=4, end_index=6, committed_index=5,
            role="leader",
        ),
        bytes.fromhex(
            "d1 01 01 01 00000007 00000050"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "000000c8 0000000000000004 0000000000000006 0000000000000005 0006 0002"
            "676e306c6561646572000200036e30683a31000200046e31683a3232"
        ),
    ),
    (
        AppendRequest(**_BASE, bodies=(b"hello", b"", b"you")),
        bytes.fromhex(
            "d1 01 02 00 00000007 00000031"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "00000003"
            "676e316e3000000005000000000000000368656c6c6f796f75"
        ),
    ),
    (
        AppendResponse(**_ANSWER, code=ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, index=5, pos=265, count=3),
        bytes.fromhex(
            "d1 01 02 01 00000007 0000002f"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "000001f6 0000000000000005 0000000000000109 00000003"
            "676e30"
        ),
    ),
    (
        AppendOnceRequest(**_BASE, producer="p1", sequence=7, bodies=(b"hello",), hidden=(0,)),
        bytes.fromhex(
            "d1 01 09 00 00000007 00000038"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "0002 0000000000000007 0001 00000001"
            "676e316e30 7031 00000000 00000005 68656c6c6f"
        ),
    ),
    (
        AppendOnceResponse(
            **_ANSWER, code=ResponseCode.SUCCESS, index=5, pos=265, count=3, is_repeated=True
        ),
        bytes.fromhex(
            "d1 01 09 01 00000007 00000038"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "000000c8 0000000000000005 0000000000000109 00000003 01 ffffffffffffffff"
            "676e30"
        ),
    ),
    (
        GetRequest(**_BASE, begin_index=5, max_size=9, consistency=Consistency.COMMITTED),
        bytes.fromhex(
            "d1 01 03 00 00000007 00000027"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "01 0000000000000005 00000009 01"
            "676e316e30"
        ),
    ),
    (
        GetRequest(**_BASE),
        bytes.fromhex(
            "d1 01 03 00 00000007 00000027"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "00 0000000000000000 00000000 00"
            "676e316e30"
        ),
    ),
    (
        GetResponse(**_ANSWER, entries=HELLO),
        bytes.fromhex(
            "d1 01 03 01 00000007 00000064"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "000000c8 0000000000000005 00000001 0000000000000003"
            "676e30"
        ) + HELLO.records,
    ),
    (
        GetResponse(**_ANSWER, code=ResponseCode.INDEX_OUT_OF_RANGE),
        bytes.fromhex(
            "d1 01 03 01 00000007 0000002f"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "0000019a ffffffffffffffff 00000000 ffffffffffffffff"
            "676e30"
        ),
    ),
    (
        PullRequest(**_BASE, node_id="n2", begin_index=5, end_index=8, max_bytes=4096, wait_ms=500),
        bytes.fromhex(
            "d1 01 04 00 00000007 00000036"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "0002 0000000000000005 0000000000000008 00001000 000001f4 01"
            "676e316e306e32"
        ),
    ),
    (
        PullResponse(**_ANSWER, entries=HELLO, ledger_begin_index=4, committed_index=6),
        bytes.fromhex(
            "d1 01 04 01 00000007 00000074"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "000000c8 0000000000000004 0000000000000006 0000000000000005 00000001 0000000000000003"
            "676e30"
        ) + HELLO.records,
    ),
    (
        VoteRequest(**_BASE, ledger_end_index=12, ledger_end_term=2, pre_vote=True),
        bytes.fromhex(
            "d1 01 05 00 00000007 0000002b"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "000000000000000c 0000000000000002 01 00"
            "676e316e30"
        ),
    ),
    (
        VoteRequest(**_BASE, transfer=True),
        bytes.fromhex(
            "d1 01 05 00 00000007 0000002b"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "ffffffffffffffff ffffffffffffffff 00 01"
            "676e316e30"
        ),
    ),
    (
        VoteResponse(**_ANSWER, vote_result=VoteResult.REJECT_ALREADY_VOTED, pre_vote=True),
        bytes.fromhex(
            "d1 01 05 01 00000007 00000025"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "000000c8 05 01 ffffffffffffffff"
            "676e30"
        ),
    ),
    (
        HeartBeatRequest(**_BASE, heart_beat_interval_ms=200),
        bytes.fromhex(
            "d1 01 06 00 00000007 0000001d"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "000000c8"
            "676e316e30"
        ),
    ),
    (
        HeartBeatResponse(**_ANSWER, code=ResponseCode.TERM_NOT_READY, clock_ms=1_700_000_000_000),
        bytes.fromhex(
            "d1 01 06 01 00000007 00000023"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "000001a0 0000018bcfe56800"
            "676e30"
        ),
    ),
    (
        PushEntryRequest(**_BASE, type=PushType.COMPARE, commit_index=4, entries=HELLO),
        bytes.fromhex(
            "d1 01 07 00 00000007 0000006c"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "02 00 0000000000000004 0000000000000005 00000001 0000000000000003"
            "676e316e30"
        ) + HELLO.records,
    ),
    (
        PushEntryRequest(**_BASE, type=PushType.COMMIT, commit_index=5),
        bytes.fromhex(
            "d1 01 07 00 00000007 00000037"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "01 00 0000000000000005 ffffffffffffffff 00000000 ffffffffffffffff"
            "676e316e30"
        ),
    ),
    (
        PushEntryRequest(**_BASE, entries=HELLO, is_batch=True),
        bytes.fromhex(
            "d1 01 07 00 00000007 0000006c"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "00 01 ffffffffffffffff 0000000000000005 00000001 0000000000000003"
            "676e316e30"
        ) + HELLO.records,
    ),
    (
        PushEntryResponse(**_ANSWER, index=5, count=1, begin_index=4, end_index=6),
        bytes.fromhex(
            "d1 01 07 01 00000007 00000038"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "000000c8 01 0000000000000005 00000001 0000000000000004 0000000000000006"
            "676e30"
        ),
    ),
    (
        PushEntryResponse(**_ANSWER, code=ResponseCode.UNKNOWN),
        bytes.fromhex(
            "d1 01 07 01 00000007 00000038"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "ffffffff 00 0000000000000000 00000000 0000000000000000 0000000000000000"
            "676e30"
        ),
    ),
    (
        LeadershipTransferRequest(
            **_BASE, transfer_id="n0", transferee_id="n1", take_leadership_ledger_index=5
        ),
        bytes.fromhex(
            "d1 01 08 00 00000007 00000029"
            "0000000000000003 00000001 0001 0002 0002 0000"
            "0002 0002 0000000000000005"
            "676e316e306e306e31"
        ),
    ),
    (
        LeadershipTransferResponse(**_ANSWER),
        bytes.fromhex(
            "d1 01 08 01 00000007 0000001b"
            "ffffffffffffffff 00000000 0001 ffff ffff 0002"
            "000000c8"
            "676e30"
        ),
    ),
)
