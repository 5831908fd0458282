# -*- test-case-name: tests.commands.test_broker -*-
"""
C{dledger tail --broker}: the messages in a RocketMQ broker's log, one per line, in the order of the log.

A damaged record is shown as damaged and does not end the output. With --follow, a lost broker is waited for,
and a line on standard error says so.
"""

from __future__ import annotations

import json
import sys

import attrs
import click

from dledger.cli.console.command import say, shown_body
from dledger.cli.rocketmq.rocketmq import body_json, field_columns, fields_of
from dledger.rocketmq.client.blocking import Broker
from dledger.rocketmq.client.native_tail import From
from dledger.values.tls_files import TlsFiles
from protocols.rocketmq.signing import Credentials
from protocols.wire.errors import WireError
from protocols.wire.fastjson import JsonObject
from protocols.wire.rocketmq.message import Message, decode_message, plain_body

#: Styles of messages; C{text} is the same as C{rocketmq} here.
STYLES = ("text", "rocketmq", "json", "raw")


@attrs.frozen(kw_only=True)
class Wanted:
    """
    The part of a log to show.

    @ivar topics: topics to show; empty for all.
    @ivar count: maximum number of messages; None for all.
    """

    from_offset: From
    follow: bool
    topics: tuple[str, ...] = ()
    count: int | None = None


def _read(record: bytes, offset: int) -> tuple[Message | None, bytes, str]:
    """A message, its body as it was sent, and the problem with either."""
    try:
        message = decode_message(record, physical_offset=offset)
    except WireError as error:
        return None, record, str(error)
    try:
        return message, plain_body(message), ""
    except WireError as error:
        return message, message.body, str(error)


def record_line(record: bytes, offset: int, style: str) -> tuple[str, bytes]:
    """
    Topic of a record, and its line of output.

    @return: topic and line; the topic is empty for a damaged record.
    """
    message, body, problem = _read(record, offset)
    if style == "raw":
        line = body + b"\n"
    elif style == "json":
        document: JsonObject = {"offset": offset, "kind": "damaged" if message is None else "message"}
        if problem:
            document["problem"] = problem
        if message is not None:
            document |= fields_of(message, offset)
        line = json.dumps(document | body_json(body), ensure_ascii=False).encode("utf-8") + b"\n"
    elif message is None:
        line = f"offset={offset}\tDAMAGED: {problem}\t{shown_body(record[:200])}\n".encode()
    else:
        line = "\t".join([f"offset={offset}", *field_columns(message, body, problem)]).encode("utf-8") + b"\n"
    return "" if message is None else message.topic, line


def tail_broker(
    address: str, wanted: Wanted, style: str, timeout_s: float, credentials: Credentials | None = None,
    tls: TlsFiles | None = None,
) -> None:
    """
    Show messages of a broker's log on standard output.

    @raise UsageError: the address or the style is invalid.
    @raise DLedgerError: the broker does not answer, or does not have that offset.
    """
    if style not in STYLES:
        raise click.UsageError(f"--format {style}: with --broker it must be one of {', '.join(STYLES)}")
    try:
        broker = Broker(address, timeout=timeout_s, credentials=credentials, tls=tls)
    except ValueError as error:
        raise click.UsageError(f"--broker: {error}") from None

    def trouble(reason: str) -> None:
        if wanted.follow:
            say(f"dledger: {reason}; waiting" if reason else f"dledger: {address} is back")

    left = wanted.count
    with broker:
        batches = broker.tail(
            wanted.from_offset, follow=wanted.follow, topics=wanted.topics or None, on_trouble=trouble
        )
        for batch in batches if left is None or left else ():
            lines = []
            for offset, record in batch.records():
                topic, line = record_line(record, offset, style)
                if wanted.topics and topic not in wanted.topics:
                    continue
                lines.append(line)
                if left is not None:
                    left -= 1
                    if not left:
                        break
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()
            if left == 0:
                return
