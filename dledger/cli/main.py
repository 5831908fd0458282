# -*- test-case-name: tests.commands.test_main -*-
"""
The command line: append to a log, read it, show its members, hand leadership over, check its files.

Data go to standard output, everything else to standard error. L{dledger.cli.console.command} lists the exit
statuses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar

import attrs
import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dledger.cli.console.administration import AdminAccess, flush, log_level
from dledger.cli.console.administration import token as token_command
from dledger.cli.console.command import (
    EXIT_INTERRUPTED,
    EXIT_UNKNOWN,
    FORMATS,
    Commands,
    show_result,
    write_entries,
)
from dledger.cli.console.contexts import FILES, FromContext, choose, chosen_of
from dledger.cli.console.failures import complain, remark
from dledger.cli.console.local_paths import NAMED_PATH, LocalFile
from dledger.cli.console.numbers import RealRange, WholeRange
from dledger.cli.console.since import Since, entry_at, moment_of, read_since, shown_until
from dledger.cli.console.target import Target
from dledger.cli.console.versions import version, versions
from dledger.cli.data.archive import archive
from dledger.cli.data.backup import backup, restore
from dledger.cli.data.export import export
from dledger.cli.ledger.bench import bench
from dledger.cli.ledger.dashboard import dashboard
from dledger.cli.ledger.group import group
from dledger.cli.ledger.machine import machine
from dledger.cli.ledger.member import member
from dledger.cli.ledger.readers import readers
from dledger.cli.ledger.sequence import sequence
from dledger.cli.ledger.state import state
from dledger.cli.ledger.status import status
from dledger.cli.ledger.watch import cluster, events, health, top
from dledger.cli.rocketmq.broker import Wanted, read_offset, tail_broker
from dledger.cli.rocketmq.files import read_file, verify
from dledger.cli.rocketmq.ha import ha_status
from dledger.cli.rocketmq.ha_resolve import ha_resolve
from dledger.cli.rocketmq.rocketmq import write_messages
from dledger.cli.tools.assisting import completion, help_command
from dledger.cli.tools.certs import certs
from dledger.cli.tools.config import config
from dledger.cli.tools.context import context_command
from dledger.client.answers.summaries import AppendInterrupted, AppendSummary
from dledger.client.answers.values import AppendError, Entry
from dledger.rocketmq.broker.access.accounts import read_credentials
from dledger.rocketmq.client.native_tail import From
from dledger.values.client_token import ClientToken, read_token
from dledger.values.errors import DLedgerError
from dledger.values.tls_files import tls_files
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.envelopes import KEY_HEADER, headers_problem

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: Maximum number of entries in one write to standard output.
_WRITE_AT_ONCE = 1_000




def _context_option(flag: str, **facts: Any) -> Callable[[_Command], _Command]:
    return click.option(flag, cls=FromContext, key=flag[2:].replace("-", "_"), **facts)


def _path_option(flag: str, **facts: Any) -> Callable[[_Command], _Command]:
    return _context_option(flag, default="", type=NAMED_PATH, **facts)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--context", "context_name", default="", metavar="NAME", is_eager=True, expose_value=False,
              callback=choose, help="A context: see dledger context. [env DLEDGER_CONTEXT]")
@_context_option("--peers", envvar="DLEDGER_PEERS", default="", metavar="ID-HOST:PORT;...",
              help="Members of the group; some are enough. [env DLEDGER_PEERS]")
@_context_option("--group", envvar="DLEDGER_GROUP", default="default", show_default=True,
              help="Name of the group. [env DLEDGER_GROUP]")
@click.option("--timeout", type=RealRange(min=0.01), default=10.0, show_default=True,
              help="Seconds in which a call has an outcome.")
@click.option("--wire", type=click.Choice(["auto", "remoting", "binary"]), default="auto",
              show_default=True, help="Format of requests.")
@_path_option("--tls-certificate", envvar="DLEDGER_TLS_CERTIFICATE", metavar="PEM",
              help="Own certificate; with the two below, connections are TLS. [env DLEDGER_TLS_CERTIFICATE]")
@_path_option("--tls-key", envvar="DLEDGER_TLS_KEY", metavar="PEM",
              help="Its private key. [env DLEDGER_TLS_KEY]")
@_path_option("--tls-authority", envvar="DLEDGER_TLS_AUTHORITY", metavar="PEM",
              help="The authority that signed the members' certificates. [env DLEDGER_TLS_AUTHORITY]")
@_path_option("--token-file", envvar="DLEDGER_TOKEN_FILE", metavar="FILE",
              help="A token for the log, see dledger token --role; then --tls-authority is enough for TLS. "
                   "[env DLEDGER_TOKEN_FILE]")
@click.option("--insecure", is_flag=True,
              help="Show the token to other machines also without TLS: everybody on the way reads it.")
@_path_option("--admin-authority", envvar="DLEDGER_ADMIN_AUTHORITY", metavar="PEM",
              help="The authority of https administrations. [default: --tls-authority, else the system's] "
                   "[env DLEDGER_ADMIN_AUTHORITY]")
@_path_option("--admin-token-file", envvar="DLEDGER_ADMIN_TOKEN_FILE", metavar="FILE",
              help="A token for administrations, see dledger token. [env DLEDGER_ADMIN_TOKEN_FILE]")
@_path_option("--broker-credentials", envvar="DLEDGER_BROKER_CREDENTIALS", metavar="FILE",
              help="accessKey and secretKey for brokers with access control, as in RocketMQ's tools.yml. "
                   "[env DLEDGER_BROKER_CREDENTIALS]")
@click.option("--version", is_flag=True, expose_value=False, is_eager=True,
              callback=lambda context, _, is_wanted: _say_version(context, is_wanted),
              help="Show versions and exit.")
@click.pass_context
def cli(
    context: click.Context, peers: str, group: str, timeout: float, wire: str, tls_certificate: str,
    tls_key: str, tls_authority: str, token_file: str, insecure: bool, admin_authority: str,
    admin_token_file: str, broker_credentials: str,
) -> None:
    """A replicated commit log: append to it, read it, administer it."""
    chosen = chosen_of(context)
    tls = token = credentials = None
    admin = AdminAccess(authority=admin_authority or tls_authority)
    try:
        tls = tls_files(certificate=tls_certificate, key=tls_key, authority=tls_authority,
                        is_client_with_token=bool(token_file))
        token = ClientToken(read_token(token_file, "--token-file"), insecure) if token_file else None
        credentials = read_credentials(broker_credentials) if broker_credentials else None
        if admin_token_file:
            admin = attrs.evolve(admin, token=read_token(admin_token_file, "--admin-token-file"))
    except ValueError as error:
        if chosen.is_named or not any(_is_of_context(context, key) for key in FILES):
            raise click.UsageError(str(error)) from None
        # Commands that need no group, such as those that mend the context, go on.
        chosen.problem = chosen.problem or f"a file of the context: {error}"
    target = Target(
        peers=peers, group=group, timeout=timeout, wire=wire, tls=tls, credentials=credentials,
        admin=admin, token=token, token_file=token_file, problem=chosen.problem,
    )
    context.obj = attrs.evolve(target, without_context=_without_context(context, target))


def _is_of_context(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(option) is ParameterSource.DEFAULT_MAP


def _without_context(context: click.Context, target: Target) -> Target:
    """The target without the members of the context and, unless C{--context} names it, its tokens."""
    is_named = chosen_of(context).is_named

    if _is_of_context(context, "peers"):
        target = attrs.evolve(target, peers="")
    if _is_of_context(context, "token_file") and not is_named:
        target = attrs.evolve(target, token=None, token_file="")
    if _is_of_context(context, "admin_token_file") and not is_named:
        target = attrs.evolve(target, admin=attrs.evolve(target.admin, token=""))
    return target


class _Lines:
    """Lines of files as bodies, without their line ends; counts the bytes read."""

    def __init__(self, files: tuple[IO[bytes], ...]) -> None:
        self._files = files
        self.bytes_read = 0
        self.is_over = False

    def __iter__(self) -> Iterator[bytes]:
        for file in self._files:
            for line in file:
                self.bytes_read += len(line)
                yield line.removesuffix(b"\n").removesuffix(b"\r")
        self.is_over = True


def _total_bytes(files: tuple[IO[bytes], ...]) -> int | None:
    total = 0
    for file in files:
        if not file.seekable():
            return None
        here = file.tell()
        total += file.seek(0, 2) - here
        file.seek(here)
    return total


def _read_headers(
    context: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, bytes] | None:
    """The headers of C{--header}; None without one."""
    headers: dict[str, bytes] = {}
    for value in values:
        name, is_there, text = value.partition("=")
        if not is_there:
            raise click.BadParameter(f"{value!r} is not a header: write NAME=VALUE")
        if name in headers:
            raise click.BadParameter(f"header {name!r} is given twice")
        headers[name] = text.encode("utf-8", "surrogateescape")
    if problem := headers_problem(headers):
        raise click.BadParameter(problem)
    return headers or None


def _with_key(headers: dict[str, bytes], key: str) -> dict[str, bytes]:
    if KEY_HEADER in headers:
        raise click.UsageError("give either --key or the header key, not both")
    return {KEY_HEADER: key.encode("utf-8", "surrogateescape"), **headers}


@cli.command()
@click.argument("bodies", nargs=-1)
@click.option("--file", "files", type=LocalFile("rb"), multiple=True,
              help="Append every line of this file; - is standard input.")
@click.option("--window", type=WholeRange(min=1), default=1000, show_default=True,
              help="Maximum number of appends under way.")
@click.option("-H", "--header", "headers", multiple=True, callback=_read_headers, metavar="NAME=VALUE",
              help="A header of each entry; may be repeated. See docs/envelopes.md.")
@click.option("--key", help="What each entry is about: the header key.")
@click.option("--envelope", is_flag=True, help="Each entry has its time, by the clock of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--progress/--no-progress", default=None, help="Show progress. Default: on a terminal.")
@click.pass_context
def append(
    context: click.Context,
    bodies: tuple[str, ...],
    files: tuple[IO[bytes], ...],
    window: int,
    headers: dict[str, bytes] | None,
    key: str | None,
    envelope: bool,
    as_json: bool,
    progress: bool | None,
) -> None:
    """
    Append BODIES, or every line of files, or of standard input, in order.

    Ends at the first body without acknowledgement: exit status 1 when it is certainly not in the log,
    2 when it may be. It is not retried in that case.
    """
    target: Target = context.obj
    if bodies and files:
        raise click.UsageError("give either BODIES or --file, not both")
    headers = headers if key is None else _with_key(headers or {}, key)
    if not bodies and not files:
        files = (sys.stdin.buffer,)
    lines = _Lines(files)
    source = [body.encode("utf-8", "surrogateescape") for body in bodies] if bodies else lines
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(), BarColumn(), TextColumn("{task.fields[entries]:,} entries"), TimeElapsedColumn(),
    )
    shows = console.is_terminal if progress is None else progress
    interrupted: AppendInterrupted | None = None
    bar = Progress(*columns, console=console, transient=True, disable=not shows)
    with target.open(envelope=envelope) as log, bar:
        task = bar.add_task("append", total=len(bodies) or _total_bytes(files), entries=0)

        def show(count: int) -> None:
            bar.update(task, completed=count if bodies else lines.bytes_read, entries=count)

        try:
            summary = log.append_many(source, window=window, progress=show, headers=headers)
        except AppendInterrupted as error:
            bar.stop()
            interrupted = error
        except AppendError:
            bar.stop()
            if not bodies and not lines.is_over:
                complain("the rest of the input was not read, and is in no count")
            raise
    if interrupted is not None:  # now that the log is closed, the counts are final
        complain(f"interrupted; {interrupted.acknowledged} entries were acknowledged")
        if interrupted.unknown:
            complain(f"unknown outcome: up to {interrupted.unknown} more may be in the log")
        context.exit(EXIT_UNKNOWN if interrupted.unknown else EXIT_INTERRUPTED)
    document = {**attrs.asdict(summary, filter=attrs.filters.exclude("runs")), "rate": summary.rate}
    show_result(document, _summary_line(summary), as_json=as_json)


def _summary_line(summary: AppendSummary) -> str:
    if not summary.count:
        return "nothing to append"
    entries = "1 entry" if summary.count == 1 else f"{summary.count:,} entries"
    where = f"index {summary.first_index}"
    if summary.count > 1:
        where = f"indexes {summary.first_index} to {summary.last_index}"
    return f"appended {entries}, {where}, in {summary.seconds:.3f} s ({summary.rate:,.0f}/s)"


def _entry_writer(style: str, as_json: bool, with_headers: bool = False) -> Callable[[Sequence[Entry]], None]:
    """A function that writes entries as the options say. @raise UsageError: the options conflict."""
    if with_headers and style in ("raw", "rocketmq"):
        raise click.UsageError(f"--format {style} writes bodies only, so it excludes --headers")
    if style == "rocketmq":
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


@cli.command()
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


@cli.command()
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
@click.option("--from-offset", callback=read_offset, default=None, metavar="N|begin|end",
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


@cli.command()
@click.argument("to")
@click.option("--term", type=WholeRange(), default=None, help="The leader's term; needed for a Java leader.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def transfer(target: Target, to: str, term: int | None, as_json: bool) -> None:
    """Hand leadership over to member TO."""
    with target.open() as log:
        try:
            new_term = log.transfer(to, term)
        except DLedgerError as error:
            if error.code in (ResponseCode.NETWORK_ERROR, ResponseCode.TIMEOUT):
                remark("it is unknown whether leadership has moved; see dledger status")
            raise
    said = f"{to} leads" + (f", term {new_term}" if new_term >= 0 else "")
    show_result({"leader_id": to, "term": new_term if new_term >= 0 else None}, said, as_json=as_json)


def _say_version(context: click.Context, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        click.echo(versions())
        context.exit()


cli.add_command(status)
cli.add_command(health)
cli.add_command(cluster)
cli.add_command(top)
cli.add_command(dashboard)
cli.add_command(events)
cli.add_command(bench)
cli.add_command(verify)
cli.add_command(read_file)
cli.add_command(archive)
cli.add_command(backup)
cli.add_command(restore)
cli.add_command(export)
cli.add_command(ha_status)
cli.add_command(ha_resolve)
cli.add_command(group)
cli.add_command(machine)
cli.add_command(member)
cli.add_command(state)
cli.add_command(readers)
cli.add_command(sequence)
cli.add_command(certs)
cli.add_command(token_command)
cli.add_command(flush)
cli.add_command(log_level)
cli.add_command(config)
cli.add_command(context_command)
cli.add_command(completion)
cli.add_command(help_command)
cli.add_command(version)


def main() -> None:
    """Entry point of the C{dledger} command."""
    cli.main(prog_name="dledger")
