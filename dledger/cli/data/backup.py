# -*- test-case-name: tests.commands.test_backup -*-
"""
C{dledger backup} and C{dledger restore}: copy a member's committed entries while it runs, and begin a new
group with them.

Both can be interrupted at any moment: the entries in a backup stay there, and a restore leaves no directory
that a member could be started with.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import attrs
import click

from dledger.base.disk.disk import OsDisk, ReadOnlyDisk
from dledger.cli.console.command import EXIT_FAILED, say, show_result, write_json
from dledger.cli.console.failures import complain
from dledger.cli.console.local_paths import NAMED_PATH, require_local
from dledger.cli.console.member_options import config_of_member, new_group_id, of_a_member
from dledger.cli.console.numbers import WholeRange
from dledger.cli.console.progress import bytes_shown
from dledger.cli.console.store_options import of_a_store
from dledger.storage.backups.archive import ArchiveSummary, archive_log
from dledger.storage.backups.place import opened_place
from dledger.storage.backups.reader import ArchiveReport, verify_archive
from dledger.storage.backups.restore import RESTORING_NAME, RestoreSummary, restore_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.manifests.archive_manifest import read_archive
from dledger.storage.manifests.archive_place import ArchivePlace
from dledger.storage.start.verify import Finding
from dledger.values.addresses import is_url
from dledger.values.ledger.group_name import GroupName


class RatePace:
    """Waits so that no more bytes are done than a rate allows."""

    def __init__(
        self, bytes_per_s: int, seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """@param bytes_per_s: 0: no bound."""
        self._rate = bytes_per_s
        self._seconds = seconds
        self._sleep = sleep
        self._began_s = seconds()
        self._done = 0

    def __call__(self, count: int) -> None:
        """C{count} more bytes are done."""
        self._done += count
        if self._rate:
            ahead_s = self._done / self._rate - (self._seconds() - self._began_s)
            if ahead_s > 0:
                self._sleep(ahead_s)


rate_option = click.option(
    "--rate", type=WholeRange(min=0), default=0, metavar="BYTES",
    help="Read at most this many bytes a second, so that a running member keeps its disk; 0: no bound.",
)
progress_option = click.option(
    "--progress/--no-progress", "shows", default=None, help="Show progress. Default: on a terminal."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("names", nargs=-1, metavar="MEMBER TARGET")
@click.option("--verify", "verified", default=None, metavar="TARGET",
              help="Read all of this backup, and compare it with its manifest and every checksum.")
@click.option("--data", "data_path", default="", type=NAMED_PATH,
              help="The data files' directory. [default: MEMBER/data]")
@click.option("--no-check", "is_trusted", is_flag=True,
              help="Do not read TARGET afterwards: damage in it is not noticed.")
@of_a_store
@rate_option
@progress_option
@json_option
@click.pass_context
def backup(
    context: click.Context, names: tuple[str, ...], verified: str | None, data_path: str, is_trusted: bool,
    options: dict[str, object], deadline: float, rate: int, shows: bool | None, as_json: bool,
) -> None:
    """
    Copy the committed entries in a member's directory MEMBER to TARGET: a directory, or a URL such as
    s3://bucket/log (needs 'dledger[archive]').

    The member may run. A backup is an archive (see dledger archive) that also has what is committed of the
    open segment; TARGET may be an earlier backup or an archive, which then goes on. Every checksum is
    compared meanwhile: damage ends the backup with exit status 1, and all entries in TARGET stay there. The
    newest snapshot of the state machine comes with them. Then all of TARGET is read and compared, the
    earlier part, too.
    """
    if verified is not None:
        if names or data_path or is_trusted:
            raise click.UsageError("--verify names the backup, and takes no other directory")
        show_verification(context, opened_place(verified, ReadOnlyDisk(), options=options,
                                                deadline_s=deadline), rate, shows, as_json)
        return
    if len(names) != 2:
        raise click.UsageError("name a directory and a target, MEMBER and TARGET; or a target with --verify")
    require_local("MEMBER", names[0])
    place = opened_place(names[1], OsDisk(), options=options, deadline_s=deadline)
    source = ArchiveSource.open(ReadOnlyDisk(), names[0], data_path=data_path)
    try:
        with bytes_shown("backup", shows=shows) as progress:
            summary = archive_log(source, place, is_backup=True, taken_s=int(time.time()), progress=progress,
                                  pace=RatePace(rate))
    finally:
        source.close()
    findings: list[Finding] = []
    if not is_trusted:
        with bytes_shown("verify", shows=shows) as progress:
            findings = verify_archive(place.disk, place.directory, progress=progress,
                                     pace=RatePace(rate)).findings
    document = {**attrs.asdict(summary), "findings": [attrs.asdict(one) for one in findings]}
    show_result(document, summary_line(summary), as_json=as_json)
    for finding in findings:
        complain(finding.sentence)
    notify_machine(summary)
    if findings:
        complain(f"{summary.target} is damaged: take a new backup to another target now, and keep this one "
                 "until that is done")
    if findings or summary.start_problem:
        context.exit(EXIT_FAILED)


def summary_line(summary: ArchiveSummary) -> str:
    """What a run of C{backup} or C{archive} did, for people."""
    if not summary.segments:
        return f"no segment is closed yet; {summary.open_entries} committed entries wait for that"
    segments = "1 segment" if summary.new_segments == 1 else f"{summary.new_segments} segments"
    copied = f"copied {segments}, {summary.new_entries} entries, {summary.new_bytes} bytes"
    left = (f"; {summary.open_entries} committed entries are in a segment that is not closed"
            if summary.open_entries else "")
    return (f"{copied if summary.new_segments else 'nothing new'}; {summary.target} holds entries "
            f"{summary.begin_index} to {summary.end_index}, {summary.segments} segments, "
            f"{summary.total_bytes} bytes{snapshot_text(summary.snapshot_index)}{left}")


def snapshot_text(index: int) -> str:
    """Which snapshot of the state machine there is; nothing without one."""
    return f", the machine's snapshot after entry {index}" if index >= 0 else ""


def notify_machine(summary: ArchiveSummary) -> None:
    """Write what is wrong with the snapshots of the state machine on standard error."""
    for sentence in summary.refused_snapshots:
        complain(f"a snapshot of the state machine is left out: {sentence}")
    if summary.start_problem:
        complain(f"{summary.start_problem}. Go on when the member has a newer snapshot, or name another "
                 "member")


def show_verification(
    context: click.Context, place: ArchivePlace, rate: int, shows: bool | None, as_json: bool
) -> None:
    """Read all of an archive or a backup, and print what is found; exit status 1 unless it is clean."""
    with bytes_shown("verify", shows=shows) as progress:
        report = verify_archive(place.disk, place.directory, progress=progress, pace=RatePace(rate))
    if as_json:
        write_json({**attrs.asdict(report), "is_clean": report.is_clean})
    else:
        _print_report(report)
    if not report.is_clean:
        context.exit(EXIT_FAILED)


def _print_report(report: ArchiveReport) -> None:
    for finding in report.findings:
        click.echo(finding.sentence)
    group = f" of group {report.group}" if report.group else ""
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.taken_s))
    click.echo(f"{report.directory}: {report.entries} entries, {report.data_bytes} bytes, indexes "
               f"{report.begin_index} to {report.end_index}{group}, last written {taken}")
    for index in report.snapshots:
        click.echo(f"a snapshot of the state machine after entry {index}")
    if report.start_problem:
        click.echo(report.start_problem)
    for path in report.left_over:
        click.echo(f"no manifest lists {path}, which may be deleted")
    count = len(report.findings) + bool(report.start_problem)
    click.echo("clean" if not count else "1 finding" if count == 1 else f"{count} findings")


@click.command()
@click.argument("source", metavar="TARGET")
@click.option("--join", "joins", is_flag=True,
              help="For a member of this group that has lost its files, instead of a new group: it begins "
                   "with the entries of TARGET, and gets the others from the members that are left.")
@of_a_member
@of_a_store
@rate_option
@progress_option
@json_option
@click.pass_context
def restore(
    context: click.Context, source: str, joins: bool, store: str, node_id: str, members: str,
    settings: tuple[str, ...], options: dict[str, object], deadline: float, rate: int, shows: bool | None,
    as_json: bool,
) -> None:
    """
    Make a member's directory from TARGET, a backup or an archive, as the first member of a new group.

    TARGET is a directory or a URL. The new group has another id, so members of the old
    group can never mix with it. The other members of --peers start with empty directories, and get all
    entries from this one.
    """
    config = config_of_member(context, store, node_id, members, settings)
    if not is_url(source) and not os.path.isdir(source):
        raise click.UsageError(f"TARGET: there is no directory {source}")
    place = opened_place(source, ReadOnlyDisk(), options=options, deadline_s=deadline)
    for trouble in read_archive(place.disk, place.directory).trouble:
        say(f"dledger: {trouble}: another copy of the manifest, or the one before it, counts")
    name = GroupName(new_group_id(), 0, True)
    with bytes_shown("restore", shows=shows) as progress:
        summary = restore_archive(place.disk, place.directory, config, OsDisk(), name, joins=joins,
                                 progress=progress, pace=RatePace(rate))
    with contextlib.suppress(OSError):  # another restore may work there
        os.rmdir(os.path.join(config.store_base_dir, RESTORING_NAME))
    made = (f"{summary.path}: entries {summary.begin_index} to {summary.end_index}"
            f"{snapshot_text(summary.snapshot_index)}")
    lines = (
        f"{made}, a member that joins the group {summary.group}, id {summary.group_id or 'not known'}",
        f"Start it with the --peers of the group, and with {_sizes(summary)}",
    ) if joins else (
        f"{made}, the first member of a new group of {', '.join(sorted(config.peers))}",
        f"new group      {summary.group}, id {summary.group_id}",
        f"Start every member with --peers of the new group, and with {_sizes(summary)}",
    )
    show_result(attrs.asdict(summary), *lines, as_json=as_json)
    if not (joins or as_json) and summary.backup_group not in ("", summary.group):
        say(f"the backup is of group {summary.backup_group}: to keep that name, delete {summary.path} and "
            f"restore with dledger --group {summary.backup_group} restore")


def _sizes(summary: RestoreSummary) -> str:
    """Options of twistd."""
    return (f"--set mapped_file_size_for_entry_data={summary.data_file_size} "
            f"--set mapped_file_size_for_entry_index={summary.index_file_size}")
