# -*- test-case-name: tests.commands.test_rocketmq -*-
"""
Output of entries that a RocketMQ broker in DLedger mode appended: one message per entry.

An entry that is not a message is shown by its kind: a leader's term-start entry (an empty body), other bytes,
or a damaged message. None of them ends the output.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence

import attrs

from dledger.cli.console.command import shown_body
from dledger.client.values import Entry
from protocols.wire.errors import WireError
from protocols.wire.fastjson import JsonObject
from protocols.wire.rocketmq.layout import DLEDGER_BODY_OFFSET, TERM_START_TOPIC
from protocols.wire.rocketmq.message import Message, decode_entry_body, decode_start, plain_body

#: Kinds of entries.
MESSAGE, EMPTY, DAMAGED, OTHER = "message", "empty", "damaged", "other"


@attrs.frozen(kw_only=True)
class Shown:
    """
    An entry and its kind.

    @ivar kind: L{MESSAGE}, L{EMPTY}, L{DAMAGED} or L{OTHER}.
    @ivar body: body of the message as it was sent; as it is stored if it cannot be unpacked.
    @ivar problem: reason why the message is damaged, or why its body was not unpacked.
    """

    entry: Entry
    kind: str
    message: Message | None = None
    body: bytes = b""
    problem: str = ""


def read_entry(entry: Entry) -> Shown:
    """Decode an entry."""
    if not entry.body:
        return Shown(entry=entry, kind=EMPTY)
    try:
        is_message = decode_start(entry.body).is_message
    except WireError:
        is_message = False
    if not is_message:
        return Shown(entry=entry, kind=OTHER, body=entry.body)
    try:
        message = decode_entry_body(entry.body, entry.pos)
    except WireError as error:
        return Shown(entry=entry, kind=DAMAGED, body=entry.body, problem=str(error))
    if message.topic == TERM_START_TOPIC and message.transaction == "rollback":
        return Shown(entry=entry, kind=EMPTY)
    try:
        return Shown(entry=entry, kind=MESSAGE, message=message, body=plain_body(message))
    except WireError as error:
        return Shown(entry=entry, kind=MESSAGE, message=message, body=message.body, problem=str(error))


def message_columns(entry: Entry) -> list[str]:
    """
    C{name=value}: topic, queue, queueOffset, tags, keys, properties, body of a message; else one column
    that describes the entry.
    """
    found = read_entry(entry)
    message = found.message
    if message is None:
        what = {
            EMPTY: "no message: empty body, or the record of a broker, as at the start of a term",
            OTHER: f"no message: {len(entry.body)} bytes: {shown_body(entry.body[:200])}",
            DAMAGED: f"DAMAGED: {found.problem}",
        }
        return [what[found.kind]]
    return field_columns(message, found.body, found.problem)


def field_columns(message: Message, body: bytes, problem: str = "") -> list[str]:
    """
    C{name=value} of the fields of a message.

    @param body: body as it was sent, or as it is stored if it could not be unpacked.
    @param problem: reason why the body could not be unpacked; else empty.
    """
    columns = [
        f"topic={shown_body(message.topic.encode())}",
        f"queue={message.queue_id}",
        f"queueOffset={message.queue_offset}",
        f"tags={shown_body((message.tags or '').encode())}",
        f"keys={shown_body(' '.join(message.keys).encode())}",
        # JSON keeps blanks, commas and equal signs in names and values unambiguous.
        f"properties={json.dumps(message.properties, separators=(',', ':'))}",
    ]
    if message.transaction != "none":
        columns.append(f"transaction={message.transaction}")
    if problem:
        columns.append(f"NOT UNPACKED: {problem}")
    return [*columns, f"body={shown_body(body)}"]


def message_line(entry: Entry) -> str:
    """Index, term and L{message_columns}, separated by tabs."""
    return "\t".join([f"index={entry.index}", f"term={entry.term}", *message_columns(entry)])


def body_json(body: bytes) -> dict[str, str]:
    """C{body} if it is UTF-8, else C{body_base64}."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def message_json(entry: Entry) -> JsonObject:
    """
    An entry as an object, with every field of the message; C{kind} is the kind of the entry.
    """
    found = read_entry(entry)
    document: JsonObject = {
        "index": entry.index, "term": entry.term, "pos": entry.pos, "kind": found.kind,
    }
    if found.problem:
        document["problem"] = found.problem
    message = found.message
    if message is not None:
        document |= fields_of(message, entry.pos + DLEDGER_BODY_OFFSET)
    return document | body_json(found.body)


def fields_of(message: Message, physical_offset: int) -> JsonObject:
    """Every field of a message except its body, by name."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": physical_offset,
        "message_id": message.message_id,
        "unique_key": message.unique_key,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": message.properties,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "compression": message.compression,
        "transaction": message.transaction,
        "born_timestamp": message.born_timestamp,
        "born_host": str(message.born_host),
        "store_timestamp": message.store_timestamp,
        "store_host": str(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
    }


def write_messages(entries: Sequence[Entry], *, as_json: bool) -> None:
    """Write a line for each entry of any kind to standard output."""
    if as_json:
        lines = [json.dumps(message_json(entry), ensure_ascii=False) for entry in entries]
    else:
        lines = [message_line(entry) for entry in entries]
    sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode("utf-8"))
    sys.stdout.buffer.flush()
