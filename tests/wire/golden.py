# -*- test-case-name: tests.wire.test_golden -*-
"""
Frames as Java DLedger 0.3.1.2 writes them, captured from it, and the values that they mean.

Each example is one request and its answer: the two framing words, the header, the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import PushType, RequestCode, VoteResult
from protocols.wire.ledger.messages import (
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
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)


@attrs.frozen(kw_only=True)
class Example:
    """
    One frame.

    @ivar words: the length word and the header word.
    @ivar header: the JSON header.
    """

    words: bytes
    header: bytes
    body: bytes
    message: Request | Response

    @property
    def frame(self) -> bytes:
        """The whole frame."""
        return self.words + self.header + self.body


#: Header of each request in hex, as it went over the network.
REQUEST_HEADERS: Mapping[RequestCode, bytes] = {
    RequestCode(code): bytes.fromhex(
        f"7b22636f6465223a{digits}2c22666c6167223a302c226c616e6775616765"
        f"223a224a415641222c226f7061717565223a{opaque}2c2273657269616c697a655479"
        "706543757272656e74525043223a224a534f4e222c2276657273696f6e223a30"
        "7d"
    )
    for code, digits, opaque in (
        (50000, "3530303030", "33"),
        (50001, "3530303031", "34"),
        (50002, "3530303032", "35"),
        (51001, "3531303031", "32"),
        (51002, "3531303032", "31"),
        (51003, "3531303033", "36"),
        (51004, "3531303034", "37"),
        (51005, "3531303035", "38"),
    )
}


def header_of(code: int, opaque: int, flag: int) -> bytes:
    """A header of Java's."""
    return (
        f'{{"code":{code},"flag":{flag},"language":"JAVA","opaque":{opaque},'
        f'"serializeTypeCurrentRPC":"JSON","version":0}}'
    ).encode()


#: Index 5, term 3, position 265, body C{hello}.
HELLO = EntryBatch(
    first_index=5,
    count=1,
    term=3,
    records=bytes.fromhex(
        "00000001" "00000035" "0000000000000005" "0000000000000003" "0000000000000109"
        "00000000" "00000000" "00000000" "00000005" "68656c6c6f"
    ),
)

_G: dict[str, Any] = {"group": "g"}
_FROM_LEADER: dict[str, Any] = {"group": "g", "remote_id": "n1", "local_id": "n0", "leader_id": "n0"}
_ENTRY = (
    b'{"body":"aGVsbG8=","bodyCrc":0,"chainCrc":0,"channel":0,"index":5,"magic":1,"pos":265,"size":53,'
    b'"term":3}'
)


def _example(words: str, code: int, opaque: int, body: bytes, message: Request | Response) -> Example:
    is_answer = isinstance(message, Response)
    header = header_of(200 if is_answer else code, opaque, int(is_answer))
    return Example(words=bytes.fromhex(words), header=header, body=body, message=message)


EXAMPLES: tuple[Example, ...] = (
    _example(
        "00000097 00000061", 50000, 3,
        b'{"code":200,"group":"g","remoteId":"n0","term":-1}',
        MetadataRequest(group="g", remote_id="n0"),
    ),
    _example(
        "000000e4 0000005f", 50000, 3,
        b'{"code":200,"group":"g","leaderId":"n0","peers":{"n0":"localhost:20911","n1":"localhost:20912",'
        b'"n2":"localhost:20913"},"term":-1}',
        MetadataResponse(
            group="g", leader_id="n0",
            peers={"n0": "localhost:20911", "n1": "localhost:20912", "n2": "localhost:20913"},
        ),
    ),
    _example(
        "000000a9 00000061", 50001, 4,
        b'{"body":"aGVsbG8=","code":200,"group":"g","remoteId":"n0","term":-1}',
        AppendRequest(group="g", remote_id="n0", bodies=(b"hello",)),
    ),
    _example(
        "000000a8 0000005f", 50001, 4,
        b'{"code":200,"group":"g","index":5,"leaderId":"n0","pos":265,"term":3}',
        AppendResponse(group="g", leader_id="n0", index=5, pos=265, term=3),
    ),
    _example(
        "000000b2 00000061", 50002, 5,
        b'{"beginIndex":5,"code":200,"group":"g","maxSize":0,"remoteId":"n0","term":-1}',
        GetRequest(group="g", remote_id="n0", begin_index=5),
    ),
    _example(
        "000000fb 0000005f", 50002, 5,
        b'{"code":200,"entries":[' + _ENTRY + b'],"group":"g","term":-1}',
        GetResponse(group="g", entries=HELLO),
    ),
    _example(
        "000000db 00000061", 51001, 2,
        b'{"code":200,"group":"g","leaderId":"n0","ledgerEndIndex":12,"ledgerEndTerm":2,"localId":"n0",'
        b'"remoteId":"n1","term":3}',
        VoteRequest(**_FROM_LEADER, ledger_end_index=12, ledger_end_term=2, term=3),
    ),
    _example(
        "000000c9 0000005f", 51001, 2,
        b'{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1","term":3,'
        b'"voteResult":"ACCEPT"}',
        VoteResponse(**_FROM_LEADER, term=3, vote_result=VoteResult.ACCEPT),
    ),
    _example(
        "000000b5 00000061", 51002, 1,
        b'{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1","term":3}',
        HeartBeatRequest(**_FROM_LEADER, term=3),
    ),
    _example("00000079 0000005f", 51002, 1, b'{"code":200,"term":-1}', HeartBeatResponse()),
    _example(
        "000000d2 00000061", 51003, 6,
        b'{"beginIndex":1,"code":200,"group":"g","leaderId":"n0","localId":"n0","nodeId":"n0",'
        b'"remoteId":"n1","term":3}',
        PullRequest(**_FROM_LEADER, node_id="n0", begin_index=1, term=3),
    ),
    _example(
        "000001a4 00000061", 51004, 7,
        b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":4,"count":1,"entry":' + _ENTRY +
        b',"firstEntryIndex":5,"group":"g","lastEntryIndex":5,"leaderId":"n0","localId":"n0","remoteId":"n1",'
        b'"term":3,"totalSize":0,"type":"APPEND"}',
        PushEntryRequest(**_FROM_LEADER, term=3, commit_index=4, entries=HELLO),
    ),
    _example(
        "000000b4 0000005f", 51004, 7,
        b'{"beginIndex":0,"code":200,"count":1,"endIndex":5,"group":"g","index":5,"term":3}',
        PushEntryResponse(**_G, term=3, begin_index=0, end_index=5, index=5, count=1),
    ),
    _example(
        "000000f9 00000061", 51005, 8,
        b'{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1",'
        b'"takeLeadershipLedgerIndex":5,"term":3,"transferId":"n0","transfereeId":"n1"}',
        LeadershipTransferRequest(
            **_FROM_LEADER, term=3, transfer_id="n0", transferee_id="n1", take_leadership_ledger_index=5
        ),
    ),
    _example("00000078 0000005f", 51005, 8, b'{"code":200,"term":4}', LeadershipTransferResponse(term=4)),
)


def _entry(index: int, body: str, pos: int, size: int) -> bytes:
    return (
        f'{{"body":"{body}","bodyCrc":0,"chainCrc":0,"channel":0,"index":{index},"magic":1,"pos":{pos},'
        f'"size":{size},"term":1}}'
    ).encode()


def _batch(first_index: int, pos: int, *bodies: bytes) -> EntryBatch:
    records = b""
    for index, body in enumerate(bodies, first_index):
        records += (1).to_bytes(4, "big") + (48 + len(body)).to_bytes(4, "big") + index.to_bytes(8, "big")
        records += (1).to_bytes(8, "big") + (pos + len(records) - 16).to_bytes(8, "big") + bytes(12)
        records += len(body).to_bytes(4, "big") + body
    return EntryBatch(first_index=first_index, count=len(bodies), term=1, records=records)


_FROM_N2: dict[str, Any] = {"group": "g", "remote_id": "n1", "local_id": "n2", "leader_id": "n2"}
_IDS = b'"leaderId":"n2","localId":"n2","remoteId":"n1","term":1'
_FIRST = _entry(0, "YQ==", 0, 49)

#: Bodies of a live group, without frames: code of the request, body, value.
BODIES: tuple[tuple[RequestCode, bytes, Request | Response], ...] = (
    (
        RequestCode.PUSH,
        b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":-1,"count":1,"entry":' + _FIRST +
        b',"firstEntryIndex":0,"group":"g","lastEntryIndex":0,' + _IDS + b',"totalSize":0,"type":"COMPARE"}',
        PushEntryRequest(**_FROM_N2, term=1, type=PushType.COMPARE, entries=_batch(0, 0, b"a")),
    ),
    (
        RequestCode.PUSH,
        b'{"beginIndex":-1,"code":406,"count":1,"endIndex":-1,"group":"g","index":0,"term":1}',
        PushEntryResponse(
            **_G, term=1, code=ResponseCode.INCONSISTENT_STATE, begin_index=-1, end_index=-1, index=0, count=1
        ),
    ),
    (
        RequestCode.PUSH,
        b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":-1,"count":1,"entry":' + _FIRST +
        b',"firstEntryIndex":0,"group":"g","lastEntryIndex":0,' + _IDS + b',"totalSize":0,"type":"TRUNCATE"}',
        PushEntryRequest(**_FROM_N2, term=1, type=PushType.TRUNCATE, entries=_batch(0, 0, b"a")),
    ),
    (
        RequestCode.PUSH,
        b'{"beginIndex":0,"code":200,"count":1,"endIndex":0,"group":"g","index":0,"term":1}',
        PushEntryResponse(**_G, term=1, begin_index=0, end_index=0, index=0, count=1),
    ),
    (
        RequestCode.PUSH,
        b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":1,"count":0,"firstEntryIndex":-1,'
        b'"group":"g","lastEntryIndex":-1,' + _IDS + b',"totalSize":0,"type":"COMMIT"}',
        PushEntryRequest(**_FROM_N2, term=1, type=PushType.COMMIT, commit_index=1),
    ),
    (
        RequestCode.PUSH,
        b'{"beginIndex":0,"code":200,"count":0,"endIndex":1,"group":"g","term":1}',
        PushEntryResponse(**_G, term=1, begin_index=0, end_index=1, count=0),
    ),
    (
        RequestCode.PUSH,
        b'{"batch":true,"batchEntry":[' + b",".join(
            (_entry(1, "YTA=", 50, 50), _entry(2, "YTE=", 100, 50), _entry(3, "YTI=", 150, 50))
        ) + b'],"code":200,"commitIndex":0,"count":3,"firstEntryIndex":1,"group":"g","lastEntryIndex":3,'
        + _IDS + b',"totalSize":150,"type":"APPEND"}',
        PushEntryRequest(
            **_FROM_N2, term=1, commit_index=0, entries=_batch(1, 50, b"a0", b"a1", b"a2"), is_batch=True
        ),
    ),
    (
        RequestCode.PUSH,
        b'{"beginIndex":0,"code":200,"count":3,"endIndex":3,"group":"g","index":1,"term":1}',
        PushEntryResponse(**_G, term=1, begin_index=0, end_index=3, index=1, count=3),
    ),
    (
        RequestCode.LEADERSHIP_TRANSFER,
        b'{"code":200,"group":"g","remoteId":"n1","takeLeadershipLedgerIndex":0,"term":1,"transferId":"n1",'
        b'"transfereeId":"n0"}',
        LeadershipTransferRequest(
            group="g", remote_id="n1", term=1, transfer_id="n1", transferee_id="n0"
        ),
    ),
    (RequestCode.GET, b'{"code":410,"entries":[],"group":"g","term":-1}',
     GetResponse(group="g", code=ResponseCode.INDEX_OUT_OF_RANGE)),
)

_BASE_0_4 = b'"group":"g","lastEntryIndex":-1,"lastEntryTerm":-1,"leaderId":"n0","localId":"n0"'

#: What a DLedger 0.4.0 follower answers to pushes of 0.3; to be refused.
PUSH_ANSWERS_0_4: tuple[bytes, ...] = (
    b'{"beginIndex":0,"code":200,"count":0,"endIndex":0,"term":-1,"xIndex":-1,"xTerm":-1}',
    b'{"beginIndex":0,"code":406,"count":0,"endIndex":0,"term":-1,"xIndex":3,"xTerm":2}',
)

#: What a DLedger 0.4.0 leader pushes; to be refused.
PUSHES_0_4: tuple[bytes, ...] = tuple(
    b'{"code":200,"commitIndex":-1,"count":0,"entries":[' + entries + b'],"firstEntryIndex":-1,' + _BASE_0_4 +
    b',"preLogIndex":4,"preLogTerm":2,"remoteId":"n1","term":3,"totalSize":0,"type":"' + kind + b'"}'
    for kind, entries in ((b"COMPARE", b""), (b"TRUNCATE", b""), (b"COMMIT", b""), (b"APPEND", _ENTRY))
)
