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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import attrs
import click

from dledger.admin.sites.reports import MemberReport, group_problems
from dledger.base.disk.disk import ReadOnlyDisk
from dledger.cli.console.administration import DEADLINE_S, ask_all
from dledger.cli.console.command import EXIT_FAILED, describe_error, write_json
from dledger.cli.console.contexts import admin_option
from dledger.cli.console.local_paths import LocalPath
from dledger.cli.console.numbers import RealRange
from dledger.cli.console.target import Target
from dledger.cli.ledger.status import gather_reports
from dledger.storage.backups.place import opened_place
from dledger.storage.manifests.archive_manifest import read_archive
from dledger.values.errors import DLedgerError
from protocols.wire.fastjson import JsonObject

#: Levels of findings: it must be mended; somebody should look; all is well.
WRONG, LOOK, FINE = "wrong", "look", "fine"
#: Part of a disk that should be free, as the alert rules have it.
FREE_PART = 0.15
#: Seconds of an fsync, of a hundredth of them, that somebody should look at, and that are wrong.
FSYNC_LOOK_S, FSYNC_WRONG_S = 0.05, 0.25
#: Days before the end of a certificate.
TLS_LOOK_DAYS, TLS_WRONG_DAYS = 30, 7
#: Part of the time that the reactor of a member may stand still.
STALLED_PART = 0.01
#: Seconds by which times of entries may be ahead.
TIMES_AHEAD_S = 3600
#: Entries that a reader may lack.
READER_LAG = 100_000
#: Fsyncs that are measured, and bytes of each.
PROBES, PROBE_BYTES = 20, 4096
_PROBE_NAME = ".dledger-doctor"
_DAY_S = 86_400

#: Kinds of file systems, with the level of a finding, and its meaning for a log.
_FILE_SYSTEMS = {
    **dict.fromkeys(("tmpfs", "ramfs"), (WRONG, "it is memory: all entries are lost with the power")),
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs"), (
        LOOK, "it is on the network: its locks and its fsync must be those of a local disk")),
    "overlay": (LOOK, "it is the layer of a container, which is lost with it: use a volume"),
}


@attrs.frozen(kw_only=True)
class Diagnosis:
    """
    @ivar level: L{WRONG}, L{LOOK} or L{FINE}.
    @ivar about: the member, directory or target.
    @ivar found: what was seen. @ivar means: what that means; empty if nothing.
    @ivar mend: a command or a page for it; empty if nothing is to be done.
    """

    level: str
    about: str
    found: str
    means: str = ""
    mend: str = ""


def group_diagnoses(reports: Iterable[MemberReport]) -> Iterator[Diagnosis]:
    """Findings about a group from the reports of its members."""
    reports = tuple(reports)
    for problem in group_problems(reports):
        yield Diagnosis(level=WRONG, about="group", found=problem,
                      means="appends fail without one leader that a majority follows",
                      mend="start the members that do not answer; see dledger cluster")
    for one in reports:
        if one.problem:
            yield Diagnosis(
                level=WRONG, about=one.member_id, found=f"it does not answer at {one.address}: {one.problem}",
                means="the group bears one loss less",
                mend="read the end of its log, start it; docs/operations.md, A lost member",
            )
        elif one.health:
            yield Diagnosis(level=WRONG, about=one.member_id, found=one.health, means="it does not serve",
                          mend="docs/operations.md, Reading the status")
    versions = {one.version for one in reports if one.version}
    if len(versions) > 1:
        named = ", ".join(f"{one.member_id} {one.version}" for one in reports if one.version)
        yield Diagnosis(level=LOOK, about="group", found=f"the members run different versions: {named}",
                      means="an upgrade has not ended", mend="docs/operations.md, Upgrade")
    members = max((len(one.members) for one in reports), default=0)
    if members and (members == 1 or members % 2 == 0):
        bears = (members - 1) // 2
        yield Diagnosis(
            level=LOOK, about="group", found=f"it has {members} members",
            means=f"it bears the loss of {bears}" + (f", as {members - 1} members do" if bears else ""),
            mend="dledger member add",
        )
    if members and not any(one.problem or one.health for one in reports):
        yield Diagnosis(level=FINE, about="group", found=f"{members} members serve")


def member_diagnoses(member_id: str, page: Mapping[str, object]) -> Iterator[Diagnosis]:
    """Findings about a member from its page C{/status}."""
    def finding(level: str, found: str, means: str, mend: str) -> Diagnosis:
        return Diagnosis(level=level, about=member_id, found=found, means=means, mend=mend)

    def number(name: str) -> float:
        value = page.get(name)
        return float(value) if isinstance(value, (int, float)) else 0.0

    free, total = number("disk_free_bytes"), number("disk_total_bytes")
    if total and free / total < FREE_PART:
        yield finding(LOOK, f"{free / 2**30:.1f} of {total / 2**30:.0f} GiB are free on its disk",
                      "a full disk takes no entries", "docs/operations.md, Disk full")
    if number("fsync_failures"):
        yield finding(WRONG, f"{number('fsync_failures'):.0f} fsyncs have failed since its start",
                      "the disk may be dying", f"look at the kernel's log; replace the disk, then {_LOST}")
    slow_s = _high(page.get("fsync"))
    if slow_s > FSYNC_LOOK_S:
        yield finding(WRONG if slow_s > FSYNC_WRONG_S else LOOK,
                      f"one fsync of a hundred takes more than {slow_s:g} s",
                      "appends with flush_disk_type=sync wait for it; a leader with a slow disk hands over",
                      "give the log a disk of its own")
    uptime_s = number("uptime_s")
    if uptime_s > 60 and number("stall_s") > STALLED_PART * uptime_s:
        yield finding(LOOK, f"its reactor stood still for {number('stall_s'):.0f} of {uptime_s:.0f} s",
                      "the machine has too few processors, or swaps", "look at top and vmstat on its machine")
    if number("set_aside_files"):
        files, size = number("set_aside_files"), number("set_aside_bytes")
        yield finding(LOOK, f"{files:.0f} files ({size:.0f} bytes) are set aside",
                      "entries were cut that may be the only copy",
                      f"dledger readfile on them below {page.get('store_path')}, then delete them")
    days = number("tls_expires_s") / _DAY_S
    if 0 < days < TLS_LOOK_DAYS:
        yield finding(WRONG if days < TLS_WRONG_DAYS else LOOK, f"its certificate ends in {days:.0f} days",
                      "then nobody connects to it", "dledger certs; docs/security.md, New certificates")
    ahead_s = number("times_ahead_ms") / 1000
    if ahead_s > TIMES_AHEAD_S:
        yield finding(WRONG, f"times in the log are {ahead_s:.0f} s ahead of the clocks of a majority",
                      "new entries have the time of the last one, until the clocks get there",
                      "dledger times --reset; docs/times.md")
    if number("connections_refused"):
        yield finding(LOOK, f"{number('connections_refused'):.0f} connections were refused since its start",
                      "its limit of connections or descriptors is reached",
                      "raise max_connections and LimitNOFILE, or close idle clients")
    machine = page.get("machine")
    if isinstance(machine, dict) and machine.get("snapshot_problem"):
        yield finding(WRONG, f"its state machine writes no snapshot: {machine['snapshot_problem']}",
                      "the log is kept, and a restart takes longer", "dledger machine snapshot")
    if isinstance(machine, dict) and machine.get("log_kept"):
        yield finding(LOOK, str(machine["log_kept"]), "the log after the snapshots stays",
                      "dledger machine status")
    readers = page.get("readers")
    for reader in readers if isinstance(readers, list) else ():
        if isinstance(reader, dict) and int(reader.get("lag", 0)) > READER_LAG:
            yield finding(LOOK, f"the reader {reader.get('name')} lacks {reader['lag']} entries",
                          "retention keeps what it has not read",
                          "start its program, or: dledger readers forget NAME")


_LOST = "docs/operations.md, A lost member"


def _high(histogram: object) -> float:
    """The upper bound, in seconds, of all but a hundredth of the values of a histogram; 0 without values."""
    if not isinstance(histogram, dict):
        return 0.0
    bounds, counts = list(histogram.get("bounds", ())), list(histogram.get("counts", ()))
    wanted, seen = 0.99 * sum(counts), 0
    for bound, count in zip([*bounds, float("inf")], counts, strict=False):
        seen += count
        if count and seen >= wanted:
            return float(bound)
    return 0.0


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
    found = list(group_diagnoses(reports))
    pages = {one.admin_url: None if one.admin_url in urls else one.member_id
             for one in reports if one.admin_url and not one.problem}
    unread: list[str] = []
    documents = _pages(target, pages, unread)
    for one in reports:
        if one.admin_url in documents:
            found += member_diagnoses(one.member_id, documents[one.admin_url])
        elif not one.problem:
            why = unread[0] if unread else "it names none that this machine reaches"
            found.append(Diagnosis(
                level=LOOK, about=one.member_id, found=f"its page was not read: {why}",
                means="nothing is known of its disk, certificate, readers and state machine",
                mend="run this on its machine, or name the page with --admin",
            ))
    return found


def _pages(target: Target, urls: Mapping[str, str | None], unread: list[str]) -> dict[str, JsonObject]:
    from dledger.admin.sites.cluster import fetch_status  # noqa: PLC0415 (other commands ask no pages)

    return ask_all(
        target.admin, urls, lambda agent, url, reactor: fetch_status(agent, url, DEADLINE_S, reactor),
        lambda url, error: unread.append(f"{url}: {error or type(error).__name__}"),
    )


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
        for level in (WRONG, LOOK, FINE):
            for one in found:
                if one.level == level:
                    click.echo(f"{level:5}  {one.about}: {one.found}")
                    for text in filter(None, (one.means, one.mend and f"-> {one.mend}")):
                        click.echo(f"       {text}")
    if is_wrong:
        context.exit(EXIT_FAILED)
