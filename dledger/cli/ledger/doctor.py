# -*- test-case-name: tests.commands.test_doctor -*-
"""
C{dledger doctor}: looks at a group, at directories of this machine, and at a backup, and says what is wrong,
what it means, and the command that mends it. Nothing is changed.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import click

from dledger.admin.sites.diagnoses import (
    FINE,
    FREE_PART,
    FSYNC_LOOK_S,
    FSYNC_WRONG_S,
    LEVELS,
    LOOK,
    WRONG,
    Diagnosis,
    all_diagnoses,
)
from dledger.base.disk.disk import ReadOnlyDisk
from dledger.cli.console.command import EXIT_FAILED, describe_error, write_json
from dledger.cli.console.contexts import admin_option
from dledger.cli.console.local_paths import LocalPath
from dledger.cli.console.numbers import RealRange
from dledger.cli.console.target import Target
from dledger.cli.ledger.member_pages import read_pages
from dledger.cli.ledger.status import gather_reports
from dledger.storage.backups.place import opened_place
from dledger.storage.manifests.archive_manifest import read_archive
from dledger.values.errors import DLedgerError

#: Fsyncs that are measured, and bytes of each.
PROBES, PROBE_BYTES = 20, 4096
_PROBE_NAME = ".dledger-doctor"

#: Kinds of file systems, with the level of a finding, and its meaning for a log.
_FILE_SYSTEMS = {
    **dict.fromkeys(("tmpfs", "ramfs"), (WRONG, "it is memory: all entries are lost with the power")),
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs"), (
        LOOK, "it is on the network: its locks and its fsync must be those of a local disk")),
    "overlay": (LOOK, "it is the layer of a container, which is lost with it: use a volume"),
}


def directory_diagnoses(
    directory: Path, *, mounts: Path = Path("/proc/mounts"), seconds: Callable[[], float] = time.perf_counter
) -> Iterator[Diagnosis]:
    """
    Findings about the disk of a directory. Some small writes measure its fsync.

    @param mounts: the mounted file systems.
    @param seconds: a monotonic clock.
    """
    def finding(level: str, found: str, means: str = "", mend: str = "") -> Diagnosis:
        return Diagnosis(level=level, about=str(directory), found=found, means=means, mend=mend)

    kind = _kind_of(directory, mounts)
    level, means = _FILE_SYSTEMS.get(kind, (FINE, ""))
    yield finding(level, f"its file system is {kind}", means, "move it to a local disk" if means else "")
    usage = shutil.disk_usage(directory)
    if usage.free < FREE_PART * usage.total:  # (/proc has no bytes in all)
        yield finding(LOOK, f"{usage.free / 2**30:.1f} of {usage.total / 2**30:.0f} GiB are free",
                      "a full disk takes no entries", "docs/operations.md, Disk full")
    try:
        took_s = _measured(directory, seconds)
    except OSError as error:
        yield finding(WRONG, f"a small file cannot be written there: {error.strerror}",
                      "a member there takes no entries", "look at its rights, and at the kernel's log")
        return
    usual_s, worst_s = statistics.median(took_s), max(took_s)
    level = WRONG if usual_s > FSYNC_WRONG_S else LOOK if usual_s > FSYNC_LOOK_S / 5 or (
        worst_s > FSYNC_WRONG_S) else FINE
    yield finding(
        level, f"an fsync takes {1000 * usual_s:.1f} ms, the slowest of {PROBES} {1000 * worst_s:.1f} ms",
        "" if level == FINE else "appends with flush_disk_type=sync wait for it",
        "" if level == FINE else "give the log a disk of its own",
    )


def _kind_of(directory: Path, mounts: Path) -> str:
    best, kind = "", "unknown"
    text = mounts.read_text("utf-8", "replace") if mounts.exists() else ""
    path = str(directory.resolve())
    for line in text.splitlines():
        _device, point, found = line.split()[:3]
        point = point.replace("\\040", " ")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, found
    return kind


def _measured(directory: Path, seconds: Callable[[], float]) -> list[float]:
    """Seconds of each fsync. @raise OSError: a write or an fsync fails."""
    path, took_s = directory / f"{_PROBE_NAME}-{os.getpid()}", list[float]()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for number in range(PROBES):
            os.pwrite(descriptor, bytes(PROBE_BYTES), number * PROBE_BYTES)
            began_s = seconds()
            os.fdatasync(descriptor)
            took_s.append(seconds() - began_s)
    finally:
        os.close(descriptor)
        path.unlink()
    return took_s


def backup_diagnosis(target: str, taken_s: int, hours: float, now_s: float) -> Diagnosis:
    """A finding about a backup or an archive. @param taken_s: its time. @param hours: it may be so old."""
    age_hours = (now_s - taken_s) / 3600
    if age_hours <= hours:
        return Diagnosis(
            level=FINE, about=target, found=f"the last run was {max(age_hours, 0):.1f} hours ago")
    return Diagnosis(level=WRONG, about=target, found=f"the last run was {age_hours:.1f} hours ago",
                   means=f"later entries are in no backup; {hours:g} hours are allowed (--backup-hours)",
                   mend="dledger backup, or dledger archive; look at the timer that runs it")


def _look_at_backup(target: str, hours: float) -> Diagnosis:
    try:
        place = opened_place(target, ReadOnlyDisk())
        manifest, problem = read_archive(place.disk, place.directory).manifest, "it has no sound manifest"
    except (DLedgerError, OSError) as error:
        manifest, problem = None, describe_error(error) if isinstance(error, DLedgerError) else str(error)
    if manifest is None:
        return Diagnosis(level=WRONG, about=target, found=problem, means="it cannot be restored",
                       mend=f"dledger backup --verify {target}")
    return backup_diagnosis(target, manifest.taken_s, hours, time.time())


def look_at_group(target: Target, urls: tuple[str, ...]) -> list[Diagnosis]:
    """Findings about a group, and about the members whose pages can be read."""
    try:
        reports = gather_reports(target, urls)
    except (click.ClickException, DLedgerError) as error:
        reason = error.format_message() if isinstance(error, click.ClickException) else describe_error(error)
        return [Diagnosis(
            level=WRONG, about="group", found=reason, means="nothing can be said about the group",
            mend="start its members, or correct --peers and --group",
        )]
    pages = read_pages(target.admin, reports, urls, with_events=False)
    return [*all_diagnoses(reports, pages.details, time.time(), pages.unread)]


@click.command()
@admin_option
@click.option("--store", "stores", multiple=True, metavar="DIR",
              type=LocalPath(exists=True, file_okay=False, path_type=Path),
              help="A directory of this machine, whose disk is looked at, too; may be repeated.")
@click.option("--backup", "backups", multiple=True, metavar="TARGET",
              help="A backup or an archive, whose age is looked at; may be repeated.")
@click.option("--backup-hours", type=RealRange(min=0.0), default=25.0, show_default=True, metavar="HOURS",
              help="Age that a backup may have.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(
    context: click.Context, urls: tuple[str, ...], stores: tuple[Path, ...], backups: tuple[str, ...],
    backup_hours: float, as_json: bool,
) -> None:
    """
    Look at the group, at disks and at backups: what is wrong, what it means, and what mends it.

    Members say most on their admin pages, so run it where these can be reached. Exit status 0 if nothing is
    wrong, 1 if something is; findings of the level "look" do not count.
    """
    found = look_at_group(context.obj, urls)
    for directory in stores:
        found += directory_diagnoses(directory)
    for target in backups:
        found.append(_look_at_backup(target, backup_hours))
    is_wrong = any(one.level == WRONG for one in found)
    if as_json:
        write_json({"is_well": not is_wrong, "findings": [attrs.asdict(one) for one in found]})
    else:
        for level in LEVELS:
            for one in found:
                if one.level == level:
                    click.echo(f"{level:5}  {one.about}: {one.found}")
                    for text in filter(None, (one.means, one.mend and f"-> {one.mend}")):
                        click.echo(f"       {text}")
    if is_wrong:
        context.exit(EXIT_FAILED)
