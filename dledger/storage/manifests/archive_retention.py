# -*- test-case-name: tests.storage.test_archive_retention -*-
"""
Retention of an archive: which of its first segments go, when an operator says so. By itself nothing goes.

Rule 1: only first segments go, and never the newest one.
Rule 2: a file is removed when no manifest lists it, neither the one that counts nor the one that would count
if that one were damaged. So two manifests are written before the first file goes, and a run that is cut short
leaves files that none lists, which the next one removes.
Rule 3: no segment goes after the last entry of the state of the group, and of the snapshot from which a state
machine could start: these entries are needed. Without such a snapshot all are.
Rule 4: an archive with a damaged manifest, or without a file that is to stay, is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dledger.storage.manifests.archive_commit import Commits
from dledger.storage.manifests.archive_manifest import (
    SLOT_NAMES,
    ArchiveBusy,
    ArchiveManifest,
    ArchivePiece,
    ArchiveTargetError,
    piece_span,
    read_archive,
)
from dledger.storage.manifests.archive_place import ArchivePlace
from dledger.values.errors import DirectoryError


@attrs.frozen(kw_only=True)
class ArchiveRetention:
    """
    What stays. A segment goes when one of the two says so.

    @ivar keep_s: a segment that was shipped longer ago goes, in seconds; None: no such rule. One of which the
        manifest does not say that stays, and so do those after it.
    @ivar keep_bytes: a segment goes if those after it have at least this many bytes; None: no such rule.
    """

    keep_s: float | None = None
    keep_bytes: int | None = None

    def expired(self, pieces: tuple[ArchivePiece, ...], now_s: float) -> tuple[ArchivePiece, ...]:
        """Those of C{pieces} that go, from the first one on; never the last one."""
        behind = sum(piece.size for piece in pieces)
        for count, piece in enumerate(pieces):
            behind -= piece.size
            is_old = self.keep_s is not None and piece.shipped_s < now_s - self.keep_s
            is_much = self.keep_bytes is not None and behind >= self.keep_bytes
            if count == len(pieces) - 1 or not (is_old or is_much):
                return pieces[:count]
        return ()


@attrs.frozen(kw_only=True)
class ExpirySummary:
    """
    What a run did, or would do.

    @ivar is_dry_run: nothing was changed.
    @ivar expired_segments, expired_entries, expired_bytes: no manifest lists them any more.
    @ivar needed_segments: would go, too, but the state machine or the state of the group needs them.
    @ivar left_over: further files that were removed, which no manifest listed before.
    @ivar begin_index, end_index, segments, total_bytes: what stays; -1 for no entry.
    """

    target: str
    is_dry_run: bool
    expired_segments: int
    expired_entries: int
    expired_bytes: int
    needed_segments: int
    left_over: int
    begin_index: int
    end_index: int
    segments: int
    total_bytes: int


def expire_archive(
    place: ArchivePlace, retention: ArchiveRetention, *, now_s: float, deletes: bool
) -> ExpirySummary:
    """
    Remove the first segments of an archive.

    @param now_s: the time now, in seconds since 1970.
    @param deletes: really do it; else nothing is changed, and the summary says what would be.
    @raise DirectoryError: there is no archive, or it is damaged. Nothing has changed.
    @raise ArchiveBusy: another program writes to it. No file that any manifest lists was removed.
    @raise ArchiveTargetError: the place failed. No file that any manifest lists was removed.
    """
    try:
        if read_archive(place.disk, place.directory).manifest is None:
            raise DirectoryError(f"{place.directory} holds no archive with a sound manifest "
                                 f"({' or '.join(SLOT_NAMES)}): nothing was removed")
        release = place.hold() if deletes else lambda: None
        try:
            return _expire(place, retention, now_s, deletes)
        finally:
            release()
    except OSError as error:
        raise ArchiveTargetError(f"{place.directory} cannot be used: {error}",
                                 target=place.directory) from error


def _expire(place: ArchivePlace, retention: ArchiveRetention, now_s: float, deletes: bool) -> ExpirySummary:
    commits = Commits(place)
    before = commits.manifest
    if before is None or commits.trouble:
        raise DirectoryError(f"{'; '.join(commits.trouble) or place.directory}: nothing was removed. Run "
                             "dledger archive with a member first, which mends the manifest")
    old = retention.expired(before.pieces, now_s)
    gone = _unneeded(before, old)
    kept = attrs.evolve(before, pieces=before.pieces[len(gone):])
    sizes = place.sizes()
    for piece in kept.pieces:
        if sizes.get(piece.name) != piece.size:
            raise DirectoryError(f"{place.directory}/{piece.name} is missing, or has not the {piece.size} "
                                 "bytes that the manifest lists: nothing was removed. dledger archive "
                                 "--verify names all such files")
    doomed = _before(kept, sizes)
    if deletes and doomed:
        if gone:
            commits.commit(kept)
        while _is_named(place, kept, doomed):  # (each commit replaces one slot, and removes an old copy)
            commits.commit(kept)
        for name in doomed:
            place.remove(name)
    return ExpirySummary(
        target=place.directory, is_dry_run=not deletes, expired_segments=len(gone),
        expired_entries=sum(piece.last_index + 1 - piece.first_index for piece in gone),
        expired_bytes=sum(piece.size for piece in gone), needed_segments=len(old) - len(gone),
        left_over=len(set(doomed) - {piece.name for piece in gone}), begin_index=kept.begin_index,
        end_index=kept.end_index, segments=len(kept.pieces), total_bytes=kept.size,
    )


def _unneeded(manifest: ArchiveManifest, old: tuple[ArchivePiece, ...]) -> tuple[ArchivePiece, ...]:
    """Those of the first pieces that neither a state machine nor the state of the group needs."""
    for kept in (manifest.machine, manifest.group_state):
        if kept is not None:
            usable = kept.usable(manifest.begin_index, manifest.end_index)
            old = tuple(piece for piece in old if usable is not None and piece.last_index <= usable.index)
    return old


def _before(kept: ArchiveManifest, names: Iterable[str]) -> list[str]:
    """Names of files that end before the first segment of C{kept}; none if it has no segment."""
    begin = kept.pieces[0].position if kept.pieces else 0
    spans = ((name, piece_span(name)) for name in names)
    return sorted(name for name, span in spans if span is not None and span[1] <= begin)


def _is_named(place: ArchivePlace, kept: ArchiveManifest, doomed: list[str]) -> bool:
    """
    Whether a manifest that may count lists a file that is to go.

    @raise ArchiveBusy: the one that counts is not ours any more.
    """
    state, wanted = read_archive(place.disk, place.directory, reads_all=True), set(doomed)
    if state.manifest is not None and state.manifest.pieces == kept.pieces:
        return any(piece.name in wanted for manifest in state.others for piece in manifest.pieces)
    raise ArchiveBusy(f"{place.directory} was changed by another program meanwhile: no file that it lists "
                      "was removed. Give the same command again")
