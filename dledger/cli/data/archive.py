# -*- test-case-name: tests.commands.test_archive -*-
"""
C{dledger archive}: ship the closed segments of a member to a directory or an object store, once or as they
close.

It can be interrupted at any moment: all segments in the archive stay there, and the next run goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import attrs
import click

from dledger.base.disk.disk import OsDisk, ReadOnlyDisk
from dledger.cli.console.command import EXIT_INTERRUPTED, say, show_result
from dledger.cli.console.failures import complain
from dledger.cli.console.local_paths import NAMED_PATH, require_local
from dledger.cli.console.numbers import RealRange, WholeRange
from dledger.cli.console.progress import bytes_shown
from dledger.cli.console.store_options import of_a_store
from dledger.cli.data.backup import (
    RatePace,
    json_option,
    notify_machine,
    progress_option,
    rate_option,
    show_verification,
    summary_line,
)
from dledger.storage.backups.archive import ArchiveSummary, archive_log, closed_index
from dledger.storage.backups.place import opened_place
from dledger.storage.backups.place_worker import DeadlineMissed
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.manifests.archive_manifest import ArchiveBusy, read_archive
from dledger.storage.manifests.archive_place import ArchivePlace
from dledger.storage.manifests.archive_retention import ArchiveRetention, ExpirySummary, expire_archive
from dledger.storage.manifests.archived_note import ArchivedNote, write_note
from dledger.values.errors import DirectoryError, StoreError

#: Longest wait between two attempts on a target that fails, in seconds.
_AGAIN_MAX_S = 60.0


class ArchiveFollower:
    """
    Runs again and again.

    A run that fails is tried again, after longer and longer waits, until they have failed for the time of
    patience: the target may be reached again, the member may repair damage, a file may expire while it is
    opened, and another program that writes to the archive may end. Any other refusal ends it, and so
    does a call that has missed its deadline.
    """

    def __init__(
        self, turn: Callable[[], None], *, interval_s: float, patience_s: float,
        seconds: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
        notify: Callable[[str], None] = say,
    ) -> None:
        """@param turn: one run."""
        self._turn = turn
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._seconds = seconds
        self._sleep = sleep
        self._notify = notify

    def run(self) -> None:
        """@raise StoreError: a run failed, for good or for too long."""
        failed_s: float | None = None
        wait_s = self._interval_s
        while True:
            try:
                self._turn()
            except StoreError as error:
                now_s = self._seconds()
                failed_s = now_s if failed_s is None else failed_s
                is_refused = isinstance(error, DirectoryError) and not isinstance(error, ArchiveBusy)
                is_final = is_refused or isinstance(error.__cause__, DeadlineMissed)
                if is_final or now_s - failed_s >= self._patience_s:
                    raise
                self._notify(f"dledger: {error.facts['reason']}; trying again in {wait_s:g} s")
                self._sleep(wait_s)
                wait_s = max(min(wait_s * 2, _AGAIN_MAX_S), self._interval_s)
            else:
                failed_s, wait_s = None, self._interval_s
                self._sleep(wait_s)


@attrs.define(kw_only=True)
class _Runs:
    """
    Runs from one member to one place.

    @ivar end_index: of the archive after the last run; -2: not known yet.
    """

    member: str
    data_path: str
    place: ArchivePlace
    rate: int
    shows: bool | None
    notes: bool
    end_index: int = -2

    def run(self, *, waits: bool) -> ArchiveSummary | None:
        """
        One run.

        @param waits: for a first committed entry, and for a closed segment that is not in the archive.
        @return: the sums; None if it waits.
        """
        source = ArchiveSource.open(ReadOnlyDisk(), self.member, data_path=self.data_path, may_be_empty=waits)
        try:
            if waits and (source.reader.committed_index < 0 or closed_index(source) <= self.end_index):
                return None
            with bytes_shown("archive", shows=self.shows) as progress:
                summary = archive_log(source, self.place, is_backup=False, taken_s=int(time.time()),
                                      progress=progress, pace=RatePace(self.rate))
            closed = closed_index(source)
        finally:
            source.close()
        self.end_index = summary.end_index
        if self.notes:
            self._note(min(summary.end_index, closed))
        return summary

    def _note(self, end_index: int) -> None:
        """
        Inform the member how far its log is in the archive: up to C{end_index}, which ends a segment.

        @raise StoreError: the note cannot be written; the archive is complete all the same.
        """
        found = read_archive(self.place.disk, self.place.directory).manifest
        last = next((one for one in (() if found is None else found.pieces) if one.last_index == end_index),
                    None)
        if last is None:
            return
        note = ArchivedNote(end_index=last.last_index, end_position=last.end_position,
                            target=self.place.directory)
        try:
            write_note(OsDisk(), self.member, note)
        except OSError as error:
            raise StoreError(f"{self.member}/archived cannot be written: {error}") from error


@click.command()
@click.argument("names", nargs=-1, metavar="MEMBER TARGET")
@click.option("--verify", "verified", default=None, metavar="TARGET",
              help="Read all of this archive, and compare it with its manifest and every checksum.")
@click.option("-f", "--follow", is_flag=True, help="Go on with segments that close later, until Ctrl-C.")
@click.option("--interval", type=RealRange(min=0.1), default=5.0, show_default=True,
              metavar="SECONDS", help="With --follow: time between two looks at the member.")
@click.option("--patience", type=RealRange(min=0), default=600.0, show_default=True,
              metavar="SECONDS",
              help="With --follow: time for which a failing target, or damage, is tried again.")
@click.option("--note", "notes", is_flag=True,
              help="Write in MEMBER how far its log is archived, for expire_only_archived.")
@click.option("--data", "data_path", default="", type=NAMED_PATH,
              help="The data files' directory. [default: MEMBER/data]")
@click.option("--expire", "expired", default=None, metavar="TARGET",
              help="Show which first segments of this archive would go by --keep-days and --keep-bytes.")
@click.option("--keep-days", type=RealRange(min=0), default=None, metavar="DAYS",
              help="With --expire: segments that were shipped longer ago go.")
@click.option("--keep-bytes", type=WholeRange(min=0), default=None, metavar="BYTES",
              help="With --expire: segments go if those after them have at least so many bytes.")
@click.option("--delete", "deletes", is_flag=True, help="With --expire: really delete them.")
@of_a_store
@rate_option
@progress_option
@json_option
@click.pass_context
def archive(
    context: click.Context, names: tuple[str, ...], verified: str | None, follow: bool, interval: float,
    patience: float, data_path: str, expired: str | None, keep_days: float | None, keep_bytes: int | None,
    deletes: bool, notes: bool, options: dict[str, object], deadline: float, rate: int, shows: bool | None,
    as_json: bool,
) -> None:
    """
    Ship the closed segments in a member's directory MEMBER to TARGET: a directory, or a URL such as
    s3://bucket/log (needs 'dledger[archive]').

    The member may run. A second run goes on where the first one ended. The newest snapshot of the state
    machine comes, too, in the place of an older one; no segment is ever deleted by itself. Every checksum is
    compared meanwhile: damage ends the run with exit status 1, and all segments in TARGET stay there.
    """
    if expired is not None:
        if names or data_path or follow or notes or verified is not None:
            raise click.UsageError("--expire names the archive, and takes no other directory, no --follow, "
                                   "no --note and no --verify")
        place = opened_place(expired, OsDisk() if deletes else ReadOnlyDisk(), options=options,
                             deadline_s=deadline)
        gone = _expired(place, keep_days, keep_bytes, deletes)
        show_result(attrs.asdict(gone), _expiry_line(gone), as_json=as_json)
        return
    if keep_days is not None or keep_bytes is not None or deletes:
        raise click.UsageError("--keep-days, --keep-bytes and --delete need --expire TARGET")
    if verified is not None:
        if names or data_path or follow or notes:
            raise click.UsageError("--verify names the archive, and takes no other directory, no --follow "
                                   "and no --note")
        show_verification(context, opened_place(verified, ReadOnlyDisk(), options=options,
                                                deadline_s=deadline), rate, shows, as_json)
        return
    if len(names) != 2:
        raise click.UsageError("name a directory and a target, MEMBER and TARGET; or a target with --verify")
    require_local("MEMBER", names[0])
    place = opened_place(names[1], OsDisk(), options=options, deadline_s=deadline)
    runs = _Runs(member=names[0], data_path=data_path, place=place, rate=rate, shows=shows,
                 notes=notes)
    if not follow:
        summary = runs.run(waits=False)
        assert summary is not None
        notify_machine(summary)
        show_result(attrs.asdict(summary), summary_line(summary), as_json=as_json)
        return

    def turn() -> None:
        summary = runs.run(waits=True)
        if summary is not None:
            notify_machine(summary)
            click.echo(json.dumps(attrs.asdict(summary)) if as_json else summary_line(summary))

    try:
        ArchiveFollower(turn, interval_s=interval, patience_s=patience).run()
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on where the archive ends")
        context.exit(EXIT_INTERRUPTED)


def _expired(
    place: ArchivePlace, keep_days: float | None, keep_bytes: int | None, deletes: bool
) -> ExpirySummary:
    if keep_days is None and keep_bytes is None:
        raise click.UsageError("--expire needs --keep-days or --keep-bytes")
    keep_s = None if keep_days is None else keep_days * 86_400
    rule = ArchiveRetention(keep_s=keep_s, keep_bytes=keep_bytes)
    return expire_archive(place, rule, now_s=time.time(), deletes=deletes)


def _expiry_line(gone: ExpirySummary) -> str:
    will, stays = ("would delete", "would hold") if gone.is_dry_run else ("deleted", "holds")
    segments = "1 segment" if gone.expired_segments == 1 else f"{gone.expired_segments} segments"
    more = f", and {gone.left_over} files that no manifest listed" if gone.left_over else ""
    if gone.needed_segments:
        more += f"; {gone.needed_segments} older ones stay: the state of the group or of a machine needs them"
    text = (f"{will} {segments}, {gone.expired_entries} entries, {gone.expired_bytes} bytes{more}; "
            f"{gone.target} {stays} entries {gone.begin_index} to {gone.end_index}, {gone.segments} "
            f"segments, {gone.total_bytes} bytes")
    return f"{text}. Nothing was changed: give --delete, too" if gone.is_dry_run else text
