# -*- test-case-name: tests.storage.test_restore -*-
"""
Restoring a backup or an archive: a member's directory with every entry of it.

The first member of a I{new} group: the old group may still live, or come back. So the result has another
group id, no vote of an old term, and no claim to be a member of before: the members of the old group turn it
away (L{dledger.storage.backups.group_setup.force_new_group}).

Or a member of the old group that has lost its files: it is what a start with an empty directory makes, with
the committed entries of the backup in it. As there, it does not know its votes and its acknowledgements,
so it is I{unsure} (L{dledger.storage.start.identity}) until it holds all that a leader has.

The state machine begins with the newest snapshot in the backup that its log reaches. A new group whose
machine could not start is refused; a member that joins gets a snapshot from the others.

The entries go through L{FileStore.append_entries}, which checks each and lays it out anew: index, checksums
of chunks, mark and list of members come from there. All is written beside the place where it belongs, and
moved there as the last step, so a restore that is cut short leaves nothing that a member could be started
with.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk
from dledger.storage.backups.group_setup import force_new_group, prepare_member
from dledger.storage.backups.machine_copy import snapshot_bytes, state_of_group, why_other_log
from dledger.storage.backups.reader import archive_batches, opened_archive
from dledger.storage.backups.source import CopyPace, CopyProgress, no_pace, no_progress
from dledger.storage.files.term_file import TermFile
from dledger.storage.manifests.archive_manifest import ArchiveManifest
from dledger.storage.manifests.archive_place import DirectoryPlace
from dledger.storage.manifests.kept_snapshot import KeptSnapshot, usable_snapshot, why_no_start
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError, StoreError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER

#: Directory in C{store_base_dir} in which a restore works.
RESTORING_NAME = "restoring"
#: Sync about every 64 MiB.
_SYNC_BYTES = 64 * 1024 * 1024


@attrs.frozen(kw_only=True)
class RestoreSummary:
    """
    What a restore did.

    @ivar path: the member's directory.
    @ivar begin_index, end_index: entries of the backup, inclusive.
    @ivar ledger_end_index: last entry of the member; one more if a new group had to list its members.
    @ivar group, group_id: name and id of the group; the id is empty where a member joins and it is not known.
    @ivar backup_group: name of the group that the backup is of; empty if that is not known.
    @ivar snapshot_index: last entry in the snapshot with which the state machine begins; -1 for none.
    """

    path: str
    begin_index: int
    end_index: int
    ledger_end_index: int
    group: str
    group_id: str
    backup_group: str
    data_file_size: int
    index_file_size: int
    snapshot_index: int


def restore_archive(
    source: Disk, backup: str, config: DLedgerConfig, disk: Disk, name: GroupName, *,
    joins: bool = False, progress: CopyProgress = no_progress, pace: CopyPace = no_pace,
) -> RestoreSummary:
    """
    Make the directory of C{config.self_id} from a backup or an archive.

    @param config: C{peers} are the members of the group. The sizes of its files come from the backup.
    @param name: the id of the new group, known; not used for a member that joins.
    @param joins: for a member of the group of the backup, which has lost its files.
    @raise DirectoryError: there is no backup, or there is something at the member's place; or a member of
        another group would join; or the state machine of the new group could not start. Nothing has changed.
    @raise StoreError: the backup is damaged, or a file cannot be read or written.
    @raise DLedgerError: there is no room.
    """
    backup = backup.rstrip("/") or "/"
    manifest = opened_archive(source, backup)
    if config.data_store_path:
        raise DirectoryError("a backup is restored without data_store_path: restore it, move the data files, "
                             "then start the member with data_store_path")
    config = attrs.evolve(
        config, mapped_file_size_for_entry_data=manifest.data_file_size,
        mapped_file_size_for_entry_index=manifest.index_file_size, bootstrap=not joins,
        accept_unclean_start=False,
    )
    snapshot = usable_snapshot(manifest.machine, manifest.begin_index, manifest.end_index)
    if joins:
        name = _name_to_join(config, backup, manifest)
    else:
        _check_start(backup, manifest)
    staged = attrs.evolve(config, store_base_dir=f"{config.store_base_dir}/{RESTORING_NAME}")
    try:
        _check_free(config, staged, disk)
        prepare_member(staged, disk, name)
        batches = archive_batches(source, backup, manifest, progress=progress, pace=pace)
        store = FileStore.open(staged, disk)
        try:
            for batch in batches:
                _check_snapshot(backup, snapshot, batch)
                _append(store, batch)
            store.record_commit(manifest.end_index)
            _install_group(source, backup, manifest, store, pace)
            store.clean_close()
        finally:
            store.abandon()
        if snapshot is not None:
            DirectoryPlace(disk, staged.self_path).put(
                snapshot.name, snapshot_bytes(source, backup, snapshot, pace))
        _record_term(staged, disk, manifest)
        end_index = manifest.end_index if joins else force_new_group(staged, disk, name)
        disk.rename(staged.self_path, config.self_path)
    except OSError as error:
        raise StoreError(f"{config.self_path} cannot be written: {error}", path=config.self_path) from error
    return RestoreSummary(
        path=config.self_path, begin_index=manifest.begin_index, end_index=manifest.end_index,
        ledger_end_index=end_index, group=config.group, group_id=name.id, backup_group=manifest.group,
        data_file_size=manifest.data_file_size,
        index_file_size=manifest.index_file_size, snapshot_index=-1 if snapshot is None else snapshot.index,
    )


def _install_group(
    source: Disk, backup: str, manifest: ArchiveManifest, store: FileStore, pace: CopyPace
) -> None:
    """
    Give the member the state of the group. A backup of a Java member has none: Java numbers nothing.

    @raise StoreError: it is damaged, or of another log.
    """
    if store.group is not None:
        return
    kept, begin_index = manifest.group_state, manifest.begin_index
    if kept is None:
        store.begin_group_anew()
    elif (snapshot := kept.usable(begin_index, manifest.end_index)) is not None:
        why = store.install_group(state_of_group(snapshot_bytes(source, backup, snapshot, pace)))
        if why:
            raise StoreError(f"{backup}/{snapshot.name}: {why}")


def _check_start(backup: str, manifest: ArchiveManifest) -> None:
    why = why_no_start(manifest.machine, manifest.group_state, manifest.begin_index, manifest.end_index)
    if why:
        raise DirectoryError(
            f"{backup}: {why}. Nothing was made. Restore another backup or archive of this group, one that "
            "has a snapshot or begins with entry 0; or take this one again, from a member that has a sound "
            "snapshot. (A member that joins the old group, with --join, gets a snapshot from the others)"
        )


def _check_snapshot(backup: str, snapshot: KeptSnapshot | None, batch: EntryBatch) -> None:
    why = "" if snapshot is None else why_other_log(snapshot, batch)
    if why:
        raise StoreError(f"{backup}/{why}")


def _name_to_join(config: DLedgerConfig, backup: str, manifest: ArchiveManifest) -> GroupName:
    """The id of the group that the backup is of, if it is known."""
    if manifest.group and manifest.group != config.group:
        raise DirectoryError(f"{backup} is of group {manifest.group}: a member of group {config.group} "
                             f"cannot begin with it. Give dledger --group {manifest.group} restore")
    return GroupName(manifest.group_id, 0, True) if manifest.group_id else GroupName()


def _check_free(config: DLedgerConfig, staged: DLedgerConfig, disk: Disk) -> None:
    if disk.exists(config.self_path):
        raise DirectoryError(f"{config.self_path} exists: choose a --store or --node-id that does not exist, "
                             "or move it away")
    if disk.exists(staged.self_path):
        raise DirectoryError(f"{staged.self_path} was left by an interrupted restore: delete it, then "
                             "restore again")


def _append(store: FileStore, batch: EntryBatch) -> None:
    """@raise DLedgerError: the entries do not fit after those before them, or there is no room."""
    if store.ledger_end_index < 0 and batch.first_index > 0:
        size, _, term = ENTRY_HEADER.unpack_from(batch.records)[1:4]
        first = EntryBatch(first_index=batch.first_index, count=1, term=term, records=batch.records[:size])
        store.truncate_to(first, anew=True)
        if batch.count == 1:
            return
        batch = EntryBatch(first_index=batch.first_index + 1, count=batch.count - 1, term=batch.term,
                           records=batch.records[size:])
    before = store.end_position
    store.append_entries(batch)
    if before // _SYNC_BYTES != store.end_position // _SYNC_BYTES:
        store.check_point(force=True)


def _record_term(config: DLedgerConfig, disk: Disk, manifest: ArchiveManifest) -> None:
    """The new group begins in the term of the last entry, without a vote."""
    terms = TermFile(disk, config.self_path)
    try:
        terms.save(manifest.pieces[-1].last_term, None)
    finally:
        terms.close()
