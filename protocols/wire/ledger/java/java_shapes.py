# -*- test-case-name: tests.wire.test_java_shapes -*-
"""
Fast paths for the most frequent JSON texts of Java, without a JSON parser.

A Java leader sends one frame for each entry, and a follower answers each; a client sends one for each append.
Java always writes the keys of an object in the same order, so one regular expression recognises those frames.

Rule: these functions either return exactly the result of the general ones
(L{protocols.wire.ledger.java.json_bodies}), or None; then the caller uses the general ones. None for very
long numbers, escapes, other keys and other orders.

Source: fastjson sorts keys; the shapes are those of PushEntryRequest in 0.3.1.2.
"""

from __future__ import annotations

import re
import struct
from binascii import a2b_base64
from functools import lru_cache

from protocols.wire.fastjson import write_object
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    PushEntryRequest,
    PushEntryResponse,
)

# Only digits that certainly fit a long; an int may still be out of range, which packing detects.
_NATURAL = rb"(0|[1-9][0-9]{0,17})"
_LONG = rb"(0|-?[1-9][0-9]{0,17})"
_INT = rb"(0|-?[1-9][0-9]{0,9})"
_SHORT_INT = rb"(0|-?[1-9][0-9]{0,8})"
# A member id or a group: short, and without characters that JSON escapes.
_TEXT = rb'"([!#-\[\]-~]{1,64})"'

_PUSH = re.compile(
    rb'\{"batch":false,"batchEntry":\[\],"code":200,"commitIndex":' + _LONG + rb',"count":1,'
    rb'"entry":\{"body":"([A-Za-z0-9+/]*={0,2})","bodyCrc":' + _INT + rb',"chainCrc":' + _INT
    + rb',"channel":' + _INT + rb',"index":' + _NATURAL + rb',"magic":' + _INT + rb',"pos":' + _LONG
    + rb',"size":' + _SHORT_INT + rb',"term":' + _NATURAL + rb'\},"firstEntryIndex":' + _LONG
    + rb',"group":' + _TEXT + rb',"lastEntryIndex":' + _LONG + rb',"leaderId":' + _TEXT
    + rb'(?:,"localId":' + _TEXT + rb')?,"remoteId":' + _TEXT + rb',"term":' + _LONG
    + rb',"totalSize":0,"type":"APPEND"\}'
)
_APPEND = re.compile(
    rb'\{"body":"([^"]+)","code":200,"group":' + _TEXT + rb',"remoteId":' + _TEXT
    + rb',"term":' + _LONG + rb'\}'
)


def read_push(body: bytes) -> PushEntryRequest | None:
    """
    An APPEND of one entry, as a Java leader of 0.3.1.2 or 0.2.7 sends it.

    @return: None if C{body} is anything else.
    """
    match = _PUSH.fullmatch(body)
    if match is None:
        return None
    (
        commit_index, encoded, body_crc, chain_crc, channel, index_text, magic, pos, _size, term_text, _first,
        group, _last, leader_id, local_id, remote_id, term,
    ) = match.groups()
    index, entry_term = int(index_text), int(term_text)
    if max(index, int(commit_index), int(pos)) > INDEX_MAX:
        return None
    try:
        content = a2b_base64(encoded, strict_mode=True)
        length = len(content)
        header = ENTRY_HEADER.pack(
            int(magic), ENTRY_HEADER_SIZE + length, index, entry_term, int(pos), int(channel), int(chain_crc),
            int(body_crc), length,
        )
    except (ValueError, struct.error):
        return None
    return PushEntryRequest(
        group=group.decode(), remote_id=remote_id.decode(), leader_id=leader_id.decode(),
        local_id=None if local_id is None else local_id.decode(), term=int(term), type=PushType.APPEND,
        commit_index=int(commit_index),
        entries=EntryBatch(first_index=index, count=1, term=entry_term, records=header + content),
    )


def read_append(body: bytes) -> AppendRequest | None:
    """
    The append of a client, as Java's sends it, and ours.

    @return: None if C{body} is anything else.
    """
    match = _APPEND.fullmatch(body)
    if match is None:
        return None
    encoded, group, remote_id, term = match.groups()
    try:
        content = a2b_base64(encoded, strict_mode=True)
    except ValueError:
        return None
    return AppendRequest(
        group=group.decode(), remote_id=remote_id.decode(), term=int(term), bodies=(content,)
    )


@lru_cache(maxsize=64)
def _group_key(group: str) -> str:
    return write_object({"group": group}).decode("utf-8")[1:-1]


@lru_cache(maxsize=64)
def _leader_key(leader_id: str) -> str:
    return write_object({"leaderId": leader_id}).decode("utf-8")[1:-1]


def write_append_answer(response: AppendResponse) -> bytes | None:
    """
    The body of an answer to an append of one entry.

    @return: None if it has a field that such an answer rarely has.
    """
    group, leader_id = response.group, response.leader_id
    if (
        group is None or leader_id is None or response.remote_id is not None
        or response.local_id is not None or response.count != 1 or response.wire_version
    ):
        return None
    return (
        f'{{"code":{int(response.code)},{_group_key(group)},"index":{response.index},'
        f'{_leader_key(leader_id)},"pos":{response.pos},"term":{response.term}}}'
    ).encode()


def write_push_answer(response: PushEntryResponse) -> bytes | None:
    """
    The body of an answer to a push.

    @return: None if it has a field that such an answer rarely has.
    """
    if (
        response.index is None or response.group is None or response.remote_id is not None
        or response.local_id is not None or response.leader_id is not None or not response.wire_version
    ):
        return None
    return (
        f'{{"beginIndex":{response.begin_index},"code":{int(response.code)},"count":{response.count},'
        f'"endIndex":{response.end_index},{_group_key(response.group)},"index":{response.index},'
        f'"term":{response.term},"wireVersion":{response.wire_version}}}'
    ).encode()
