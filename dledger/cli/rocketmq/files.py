# -*- test-case-name: tests.commands.test_files -*-
"""
The commands that read a member's files: C{dledger verify} and C{dledger readfile}.

Neither changes anything; both also work on the directory of a running member, ours or Java's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import attrs
import click

from dledger.base.disk.disk import ReadOnlyDisk
from dledger.cli.console.command import EXIT_FAILED, shown_body, write_json
from dledger.cli.console.local_paths import NAMED_PATH, LocalPath
from dledger.cli.console.numbers import WholeRange
from dledger.cli.console.progress import bytes_shown
from dledger.cli.rocketmq.rocketmq import body_json, message_columns, message_json
from dledger.client.values import Entry, diverging
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.rocketmq.verify.report import StoreReport
from dledger.rocketmq.verify.store_check import is_store, store_document, verify_store
from dledger.storage.start.verify import VerifyReport, verify_directory
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    decode_header,
)

_INDEX_FOLDER = "index"


@click.command()
@click.argument("directory", type=LocalPath(exists=True, file_okay=False), required=False)
@click.option("--group", "of_group", is_flag=True,
              help="Compare the members of the running group instead, by checksums at one committed entry.")
@click.option("--data", "data_path", default="", type=NAMED_PATH,
              help="The data files' directory. [default: DIRECTORY/data; of a broker DIRECTORY/commitlog]")
@click.option("--index-slots", type=WholeRange(min=1), default=5_000_000, show_default=True,
              help="Of a broker's store: its maxHashSlotNum.")
@click.option("--index-entries", type=WholeRange(min=2), default=20_000_000, show_default=True,
              help="Of a broker's store: its maxIndexNum.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify(
    context: click.Context, directory: str | None, of_group: bool, data_path: str, index_slots: int,
    index_entries: int, as_json: bool,
) -> None:
    """
    Check every record, checksum and index unit in a member's DIRECTORY, or in the store of a broker.

    Of a broker, ours or RocketMQ's, stopped or a copy: the commit log, the consume queues against it, the
    index by key, checkpoint, mark and metadata; each finding says what mends it. Nothing is changed.

    With --group, say which members of a running group hold other entries than its leader, up to one entry
    that all have committed. Exit status 1 if there are findings, or a member could not be compared.
    """
    if of_group == (directory is not None):
        raise click.UsageError("give a DIRECTORY, or --group for the members of a running group")
    if directory is None:
        _verify_group(context, as_json=as_json)
        return
    if is_store(ReadOnlyDisk(), directory):
        try:
            config = StoreConfig(
                store_path_root_dir=directory, store_path_commit_log=data_path, max_hash_slot_num=index_slots,
                max_index_num=index_entries,
            )
        except ValueError as error:
            raise click.UsageError(f"--index-slots or --index-entries: {error}") from None
        _verify_store(context, config, as_json=as_json)
        return
    with bytes_shown("verify") as progress:
        report = verify_directory(ReadOnlyDisk(), directory, data_path=data_path, progress=progress)
    if as_json:
        write_json({**attrs.asdict(report), "is_clean": report.is_clean})
    else:
        _print_report(report)
    if not report.is_clean:
        context.exit(EXIT_FAILED)


def _verify_store(context: click.Context, config: StoreConfig, *, as_json: bool) -> None:
    with bytes_shown("verify") as progress:
        report = verify_store(ReadOnlyDisk(), config, progress=progress)
    if as_json:
        write_json(store_document(report))
    else:
        _print_store(report)
    if not report.is_clean:
        context.exit(EXIT_FAILED)


def _print_store(report: StoreReport) -> None:
    for finding in report.findings:
        click.echo(f"{finding.file}: {finding.sentence}")
        click.echo(f"    to mend: {finding.mend}")
    if report.findings_count > len(report.findings):
        click.echo(f"... and {report.findings_count - len(report.findings)} more")
    if report.log == "raft log":
        click.echo("its log is a raft log: give dledger verify the directory of its member, dledger-ID, too")
    click.echo(
        f"{report.path}: {report.messages} messages from {report.begin_offset} to {report.end_offset}, "
        f"{report.units} units in {report.queues} queues, {report.index_entries} entries in "
        f"{report.index_files} files of the index"
    )
    if not report.is_clean_close:
        click.echo("a broker has it open, or crashed: the next start looks at its end")
    if report.undispatched:
        click.echo(f"{report.undispatched} messages are in no queue yet: the next start puts them there")
    count = report.findings_count
    click.echo("clean" if report.is_clean else "1 finding" if count == 1 else f"{count} findings")


def _verify_group(context: click.Context, *, as_json: bool) -> None:
    with context.obj.open() as log:
        marks = log.chain_marks()
    other = diverging(marks)
    left_out = {mark.member_id: mark.problem or "its entry has no checksum (Java's)" for mark in marks
                if mark.problem or not mark.chain_crc}
    index = max((mark.index for mark in marks), default=-1)
    if as_json:
        write_json({"index": index, "diverging": other, "not_compared": left_out,
                    "members": [attrs.asdict(mark) for mark in marks]})
    elif marks and all(mark.problem for mark in marks):
        for mark in marks:
            click.echo(f"{mark.member_id}\tnot compared\t{mark.problem}")
        click.echo("no member answered")
    elif index < 0:
        click.echo("no entry is committed that all members have")
    else:
        for mark in marks:
            said = left_out.get(mark.member_id)
            said = f"not compared\t{said}" if said else "diverges" if mark.member_id in other else "same"
            crc = "-" if mark.problem else f"{mark.chain_crc & 0xFFFFFFFF:08x}"
            click.echo(f"{mark.member_id}\t{mark.term}\t{crc}\t{said}")
        click.echo(f"compared up to entry {index}: " + ("the logs differ" if other else "no difference"))
    if other or left_out:
        context.exit(EXIT_FAILED)


def _print_report(report: VerifyReport) -> None:
    for finding in report.findings:
        at = f" at {finding.offset}" if finding.offset >= 0 else ""
        entry = f", entry {finding.index}" if finding.index >= 0 else ""
        click.echo(f"{finding.file}{at}{entry}: {finding.sentence}")
    if report.findings_count > len(report.findings):
        click.echo(f"... and {report.findings_count - len(report.findings)} more")
    click.echo(
        f"{report.path}: {report.entries} entries, {report.data_bytes} bytes, indexes "
        f"{report.begin_index} to {report.end_index}, committed {report.committed_index}"
    )
    if report.without_chain_crc:
        click.echo(f"{report.without_chain_crc} records have no checksums (Java's)")
    if report.repair_end_index >= 0:
        click.echo(f"the member is repairing, up to entry {report.repair_end_index}")
    for hole in report.holes:
        click.echo(f"hole: entries {hole.first_index} to {hole.last_index}; "
                   f"{max(report.end_index - hole.last_index, 0)} entries are after it")
    for kept in report.set_aside:
        click.echo(f"set aside: {kept.path}, {kept.size} bytes")
    count = report.findings_count
    click.echo("clean" if report.is_clean else "1 finding" if count == 1 else f"{count} findings")


@click.command(name="readfile")
@click.argument("path", type=LocalPath(exists=True))
@click.option("--pos", type=WholeRange(min=0), default=0, help="First stream offset to show.")
@click.option("--size", type=WholeRange(), default=-1, help="Length of the range to show, in bytes; -1: all.")
@click.option("-n", "--count", type=WholeRange(min=1), default=None, help="Maximum number of records.")
@click.option("--body", "with_body", is_flag=True, help="Show bodies, too.")
@click.option("--format", "style", type=click.Choice(["text", "rocketmq"]), default="text", show_default=True,
              help="rocketmq: show the messages of a RocketMQ broker in DLedger mode.")
@click.option("--json", "as_json", is_flag=True, help="Print an object in JSON for each record, one a line.")
def read_file(
    path: str, pos: int, size: int, count: int | None, with_body: bool, style: str, as_json: bool
) -> None:
    """
    Show the headers of the records in PATH: a data file, an index file, or a directory of such files.
    """
    bodies = style if style == "rocketmq" else "text" if with_body else ""
    files = _files(Path(path))
    if not files:
        raise click.ClickException(f"{path} holds no data file (20 digits, the offset of its first byte)")
    left = count
    end = pos + size if size >= 0 else None
    for file in files:
        rows = _units(file) if file.parent.name == _INDEX_FOLDER else _records(file, pos, end, bodies)
        for row in rows:
            click.echo(row.json_line(bodies) if as_json else row.line(bodies))
            if left is not None:
                left -= 1
                if not left:
                    return


@attrs.frozen(kw_only=True)
class _Row:
    """
    A record, the blank at the end of a file, or an index unit.

    @ivar facts: its fields by name. @ivar body: None if it has none, or was not asked for.
    """

    facts: dict[str, int]
    body: bytes | None = None
    is_blank: bool = False

    def _entry(self) -> Entry:
        facts = self.facts
        return Entry(index=facts["index"], term=facts["term"], pos=facts["pos"], body=self.body or b"")

    def line(self, bodies: str) -> str:
        """For people."""
        words = [
            f"{name}={_hex(value) if name.endswith('Crc') else value}" for name, value in self.facts.items()
        ]
        if self.is_blank:
            words.insert(1, "blank")
        line = " ".join(words)
        if self.body is None:
            return line
        if bodies == "rocketmq":
            return "\t".join([line, *message_columns(self._entry())])
        return f"{line} body={shown_body(self.body)}"

    def json_line(self, bodies: str) -> str:
        """For programs."""
        found: dict[str, object] = {**self.facts, "is_blank": self.is_blank}
        if self.body is not None:
            found |= message_json(self._entry()) if bodies == "rocketmq" else body_json(self.body)
        return json.dumps(found, ensure_ascii=False)


def _hex(value: int) -> str:
    return f"{value & 0xFFFFFFFF:08x}"


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    folder = path / "data" if (path / "data").is_dir() else path
    return sorted(file for file in folder.iterdir() if len(file.name) == 20 and file.name.isdecimal())


def _records(file: Path, pos: int, end: int | None, bodies: str) -> Iterator[_Row]:
    base = int(file.name) if file.name.isdecimal() else 0
    if end is not None and base >= end:
        return
    with file.open("rb") as stream:
        length = stream.seek(0, 2)
        at = max(0, pos - base)
        while at + BLANK.size <= length and (end is None or base + at < end):
            row, step = _record(stream, at, base, length, bodies)
            if row is not None:
                yield row
            if not step:
                return
            at += step


def _record(stream: IO[bytes], at: int, base: int, length: int, bodies: str) -> tuple[_Row | None, int]:
    """The record at C{at}, and the distance to the next record; 0 if there is none."""
    stream.seek(at)
    data = stream.read(ENTRY_HEADER_SIZE)
    magic, size = BLANK.unpack_from(data)
    if magic == BLANK_MAGIC:
        return _Row(facts={"pos": base + at, "size": size}, is_blank=True), 0
    if magic == 0 and size == 0:
        return None, 0
    if len(data) < ENTRY_HEADER_SIZE or magic != MAGIC or size < ENTRY_HEADER_SIZE or at + size > length:
        raise click.ClickException(f"{stream.name} at {at}: no record (magic={magic}, size={size})")
    header = decode_header(data)
    facts = {
        "index": header.index, "term": header.term, "pos": header.pos, "size": header.size,
        "magic": header.magic, "channel": header.channel, "chainCrc": header.chain_crc,
        "bodyCrc": header.body_crc,
    }
    body = stream.read(size - ENTRY_HEADER_SIZE) if bodies else None
    return _Row(facts=facts, body=body), size


def _units(file: Path) -> Iterator[_Row]:
    with file.open("rb") as stream:
        while len(data := stream.read(INDEX_UNIT_SIZE)) == INDEX_UNIT_SIZE:
            magic, pos, size, index, term = INDEX_UNIT.unpack(data)
            if magic != MAGIC:
                return
            yield _Row(facts={"index": index, "term": term, "pos": pos, "size": size})
