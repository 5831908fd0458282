# -*- test-case-name: tests.commands.test_main -*-
"""C{dledger get} and C{dledger tail}: committed entries; those of RocketMQ as messages, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from dledger.cli.console.command import FORMATS, write_entries
from dledger.cli.console.contexts import FromContext
from dledger.cli.console.numbers import WholeRange
from dledger.cli.console.since import Since, entry_at, moment_of, read_since, shown_until
from dledger.cli.console.target import Target
from protocols.wire.ledger.codes import Consistency

if TYPE_CHECKING:
    from dledger.client.values import Entry
    from dledger.rocketmq.client.native_tail import From

#: Maximum number of entries in one write to standard output.
_WRITE_AT_ONCE = 1_000


def _read_offset(context: click.Context, param: click.Parameter, value: str | None) -> From | None:
    """An offset in a log, or one of its ends; None if the option was not given."""
    if value is None:
        return None
    if value == "begin":
        return "begin"
    if value == "end":
        return "end"
    if not (value.isascii() and value.isdecimal() and len(value) < 19):
        raise click.BadParameter(f"{value!r} is not an offset (0 or more), begin or end")
    return int(value)


def _entry_writer(style: str, as_json: bool, with_headers: bool = False) -> Callable[[Sequence[Entry]], None]:
    """A function that writes entries as the options say. @raise UsageError: the options conflict."""
    if with_headers and style in ("raw", "rocketmq"):
        raise click.UsageError(f"--format {style} writes bodies only, so it excludes --headers")
    if style == "rocketmq":
        from dledger.cli.rocketmq.rocketmq import write_messages  # most entries are no messages
        return lambda entries: write_messages(entries, as_json=as_json)
    if style == "raw" and as_json:
        raise click.UsageError("--format raw writes bodies as they are, so it excludes --json")
    return lambda entries: write_entries(
        entries, "json" if as_json else style, with_headers=with_headers
    )


_format_option = click.option(
    "--format", "style", type=click.Choice([*FORMATS, "rocketmq"]), default="text", show_default=True,
    help="text: index, term, body; json: one object per line; raw: bodies; rocketmq: messages of a RocketMQ "
    "broker in DLedger mode.",
)
_json_option = click.option(
    "--json", "as_json", is_flag=True, help="One object per line; with text the same as --format json."
)
_headers_option = click.option(
    "--headers", "with_headers", is_flag=True,
    help="With text: time and headers before the body. (JSON has them without it.)",
)


@click.command()
@click.argument("index", type=WholeRange(min=0), required=False)
@click.option("--at", "at_ms", callback=read_since, default=None, metavar="TIME",
              help="Instead of INDEX: the first entry of this time or later, see tail --since.")
@click.option("--consistency", type=click.Choice([kind.value for kind in Consistency]),
              default=Consistency.LINEARIZABLE.value, show_default=True,
              help="linearizable: from the proven leader; committed: from any member, may lag.")
@_format_option
@_json_option
@_headers_option
@click.pass_obj
def get(
    target: Target, index: int | None, at_ms: int | None, consistency: str, style: str, as_json: bool,
    with_headers: bool,
) -> None:
    """Show the entry at INDEX, or of a time."""
    if (index is None) == (at_ms is None):
        raise click.UsageError("give either INDEX or --at TIME")
    write = _entry_writer(style, as_json, with_headers)
    with target.open() as log:
        if at_ms is not None:
            write([entry_at(log, at_ms)])
        elif index is not None:
            write([log.get(index, consistency)])


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Continue with entries that are appended later.")
@click.option("--from", "from_index", type=WholeRange(min=0), default=None,
              help="First index to show.")
@click.option("-n", "--lines", type=WholeRange(min=0), default=None,
              help="Number of last entries [default: 10]; maximum with --from, --since or --broker.")
@click.option("--since", "since_ms", callback=read_since, default=None, metavar="TIME",
              help="Entries of this time and later, where entries have times: ISO (UTC without a zone), "
                   "seconds or milliseconds since 1970, or how long ago: 10m. See docs/envelopes.md.")
@click.option("--until", "until_ms", callback=read_since, default=None, metavar="TIME",
              help="Entries that are earlier than this time, written likewise; then end.")
@click.option("--broker", cls=FromContext, key="broker", unless="peers", metavar="HOST:PORT", default="",
              help="Show messages of a RocketMQ broker's log instead, master or slave.")
@click.option("--topic", "topics", multiple=True, help="With --broker: only this topic; may be repeated.")
@click.option("--from-offset", callback=_read_offset, default=None, metavar="N|begin|end",
              help="With --broker: first offset in its log. Default: begin; with -f: end.")
@click.option("--control", is_flag=True,
              help="Also show the log's own entries, which no program has appended.")
@_format_option
@_json_option
@_headers_option
@click.pass_obj
def tail(
    target: Target, follow: bool, from_index: int | None, lines: int | None, since_ms: int | None,
    until_ms: int | None, broker: str, topics: tuple[str, ...], from_offset: From | None, control: bool,
    style: str, as_json: bool, with_headers: bool,
) -> None:
    """
    Show committed entries.

    A Java group needs --from, and its leader also shows entries that are not committed yet.

    With --broker, show messages in the order of the broker's log: all messages in the log of a dledger
    broker, but of a RocketMQ broker only the messages that its consumers see.
    """
    if broker:
        if from_index is not None:
            raise click.UsageError("--from is an index of a group's log; with --broker give --from-offset")
        if since_ms is not None or until_ms is not None or with_headers:
            raise click.UsageError("--since, --until and --headers are of a group's log; a broker's has none")
        if style == "raw" and as_json:
            raise click.UsageError("--format raw writes bodies as they are, so it excludes --json")
        if from_offset is None:
            from_offset = "end" if follow else "begin"
        from dledger.cli.rocketmq.broker import Wanted, tail_broker  # most logs are those of groups
        wanted = Wanted(from_offset=from_offset, follow=follow, topics=topics, count=lines)
        tail_broker(
            broker, wanted, "json" if as_json else style, target.timeout, target.credentials, target.tls
        )
        return
    if topics or from_offset is not None:
        raise click.UsageError("--topic and --from-offset need --broker")
    if since_ms is not None and from_index is not None:
        raise click.UsageError("give either --from or --since, not both")
    write = _entry_writer(style, as_json, with_headers)
    is_placed = from_index is not None or since_ms is not None
    left = lines if is_placed else None
    first = from_index if from_index is not None else -(10 if lines is None else lines)
    if left == 0 or (first == 0 and not is_placed and not follow):
        return
    with target.open() as log:
        since = Since(since_ms) if since_ms is not None else None
        if since is not None:
            first = log.find_time(moment_of(since.since_ms))
        elif from_index is None and lines == 0:
            first = max(info.committed_index for info in log.status()) + 1
        entries: Iterator[Entry] = (
            entry for entry in log.tail(first, follow=follow, control=control)
            if since is None or since.is_shown(entry)
        )
        if until_ms is not None:
            entries = shown_until(entries, until_ms)
        _write_all(entries, write, left, at_once=follow)


def _write_all(
    entries: Iterator[Entry], write: Callable[[Sequence[Entry]], None], left: int | None, *, at_once: bool
) -> None:
    """
    Write entries, each at once or in pieces.

    @param left: their number at most; None: no bound.
    """
    gathered: list[Entry] = []
    for entry in entries:
        gathered.append(entry)
        if at_once or len(gathered) >= _WRITE_AT_ONCE:
            write(gathered)
            gathered = []
        if left is not None:
            left -= 1
            if not left:
                break
    write(gathered)
