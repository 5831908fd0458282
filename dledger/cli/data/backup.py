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
from dledger.cli.console.command import EXIT_FAILED, bytes_shown, say, show_result, write_json
from dledger.cli.console.failures import complain
from dledger.cli.console.local_paths import NAMED_PATH, LocalPath
from dledger.cli.console.member_options import config_of_member, new_group_id, of_a_member
from dledger.cli.console.numbers import WholeRange
from dledger.cli.console.store_options import of_a_store
from dledger.storage.backups.archive import ArchiveSummary
from dledger.storage.backups.backup import BackupSummary, take_backup
from dledger.storage.backups.backup_reader import BackupReport, verify_backup
from dledger.storage.backups.backup_source import BackupSource
from dledger.storage.backups.place import opened_place
from dledger.storage.backups.restore import RESTORING_NAME, RestoreSummary, restore_backup
from dledger.storage.manifests.archive_manifest import read_archive
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


#: Where a URL works.
_ARCHIVES = "To a store, use dledger archive"
rate_option = click.option(
    "--rate", type=WholeRange(min=0), default=0, metavar="BYTES",
    help="Read at most this many bytes a second, so that a running member keeps its disk; 0: no bound.",
)
progress_option = click.option(
    "--progress/--no-progress", "shows", default=None, help="Show progress. Default: on a terminal."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("paths", nargs=-1, metavar="MEMBER BACKUP", type=LocalPath(file_okay=False, hint=_ARCHIVES))
@click.option("--verify", "verified", type=LocalPath(exists=True, file_okay=False, hint=_ARCHIVES),
              default=None, metavar="BACKUP",
              help="Read all of this backup, and compare it with its checksums.")
@click.option("--data", "data_path", default="", type=NAMED_PATH,
              help="The data files' directory. [default: MEMBER/data]")
@click.option("--no-check", "is_trusted", is_flag=True,
              help="Do not read BACKUP afterwards: damage in it is not noticed.")
@rate_option
@progress_option
@json_option
@click.pass_context
def backup(
    context: click.Context, paths: tuple[str, ...], verified: str | None, data_path: str, is_trusted: bool,
    rate: int, shows: bool | None, as_json: bool,
) -> None:
    """
    Copy the committed entries in a member's directory MEMBER to the directory BACKUP.

    The member may run. A second backup to the same directory copies only what is new. Every checksum is
    compared meanwhile: damage ends the backup with exit status 1, and all entries in BACKUP stay there. The
    newest snapshot of the state machine comes with them. Then all of BACKUP is read and compared, the
    earlier part, too.
    """
    if verified is not None:
        if paths or data_path or is_trusted:
            raise click.UsageError("--verify names the backup, and takes no other directory")
        with bytes_shown("verify", shows=shows) as progress:
            report = verify_backup(ReadOnlyDisk(), verified, progress=progress, pace=RatePace(rate))
        print_backup_report(report, as_json)
        if not report.is_clean:
            context.exit(EXIT_FAILED)
        return
    if len(paths) != 2:
        raise click.UsageError("name two directories, MEMBER and BACKUP; or one with --verify")
    source = BackupSource.open(ReadOnlyDisk(), paths[0], data_path=data_path)
    try:
        with bytes_shown("backup", shows=shows) as progress:
            summary = take_backup(source, OsDisk(), paths[1], taken_s=int(time.time()), progress=progress,
                                  pace=RatePace(rate))
    finally:
        source.close()
    findings: list[Finding] = []
    if not is_trusted:
        with bytes_shown("verify", shows=shows) as progress:
            report = verify_backup(ReadOnlyDisk(), summary.directory, progress=progress, pace=RatePace(rate))
        findings = report.findings
    document = {**attrs.asdict(summary), "findings": [attrs.asdict(one) for one in findings]}
    show_result(document, _summary_line(summary), as_json=as_json)
    for finding in findings:
        complain(finding.sentence)
    notify_machine(summary)
    if findings:
        complain(f"{summary.directory} is damaged: take a new backup to another directory now, and keep "
            "this one until that is done")
    if findings or summary.start_problem:
        context.exit(EXIT_FAILED)


def _summary_line(summary: BackupSummary) -> str:
    copied = f"copied {summary.new_entries} entries, {summary.new_bytes} bytes"
    return (f"{copied if summary.new_entries else 'nothing new'}; {summary.directory} holds entries "
            f"{summary.begin_index} to {summary.end_index}, {summary.total_bytes} bytes"
            f"{snapshot_text(summary.snapshot_index)}")


def snapshot_text(index: int) -> str:
    """Which snapshot of the state machine there is; nothing without one."""
    return f", the machine's snapshot after entry {index}" if index >= 0 else ""


def notify_machine(summary: BackupSummary | ArchiveSummary) -> None:
    """Write what is wrong with the snapshots of the state machine on standard error."""
    for sentence in summary.refused_snapshots:
        complain(f"a snapshot of the state machine is left out: {sentence}")
    if summary.start_problem:
        complain(f"{summary.start_problem}. Go on when the member has a newer snapshot, or name another "
                 "member")


def print_backup_report(report: BackupReport, as_json: bool) -> None:
    """For people, or as JSON."""
    if as_json:
        write_json({**attrs.asdict(report), "is_clean": report.is_clean})
        return
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
        click.echo(f"left over by a backup that was cut short: {path}")
    count = len(report.findings) + bool(report.start_problem)
    click.echo("clean" if not count else "1 finding" if count == 1 else f"{count} findings")


@click.command()
@click.argument("source", metavar="BACKUP")
@click.option("--join", "joins", is_flag=True,
              help="For a member of this group that has lost its files, instead of a new group: it begins "
                   "with the entries of BACKUP, and gets the others from the members that are left.")
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
    Make a member's directory from a BACKUP (or an archive), as the first member of a new group.

    BACKUP is a directory, or the URL of an archive. The new group has another id, so members of the old
    group can never mix with it. The other members of --peers start with empty directories, and get all
    entries from this one.
    """
    config = config_of_member(context, store, node_id, members, settings)
    if not is_url(source) and not os.path.isdir(source):
        raise click.UsageError(f"BACKUP: there is no directory {source}")
    place = opened_place(source, ReadOnlyDisk(), options=options, deadline_s=deadline)
    for trouble in read_archive(place.disk, place.directory).trouble:
        say(f"dledger: {trouble}: another copy of the manifest, or the one before it, counts")
    name = GroupName(new_group_id(), 0, True)
    with bytes_shown("restore", shows=shows) as progress:
        summary = restore_backup(place.disk, place.directory, config, OsDisk(), name, joins=joins,
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
