# -*- test-case-name: tests.sim.test_keeper -*-
"""
An operator of a simulated group who keeps copies of its log, and gives a lost member its entries back.

Now and then the operator backs up a member, running or stopped, or ships its closed segments to an archive,
or to a backup, or expires the first segments of an archive. The copies are on a machine of their own, which
may lose power in between. A member whose disk is lost begins with the entries of a copy. In the end a new
group begins with each copy.

Rule 1: every entry of a copy is a committed one of the group, at its index, in its term, byte for byte.
Rule 2: a copy stays sound, and keeps its end, whatever a run of the operator met.
Rule 3: a run that fails has a reason: damage, a tail that a power cut has torn and no start has cut, or a
member that is behind the copy, or begins after its end.
Rule 4: the files of a running member that nobody damaged have no finding that it does not know.
Rule 5: a new group with a state machine begins with the snapshot of the copy, or, if a machine could not
start from the copy, is refused.
"""

from __future__ import annotations

import random

import attrs

from dledger.base.disk.file_table import CHUNKS
from dledger.storage.backups.archive import archive_log, closed_index
from dledger.storage.backups.reader import archive_batches, opened_archive, verify_archive
from dledger.storage.backups.restore import RESTORING_NAME, restore_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME
from dledger.storage.files.snapshot_file import check_snapshot
from dledger.storage.manifests.archive_manifest import SLOT_NAMES, read_archive
from dledger.storage.manifests.archive_place import DirectoryPlace
from dledger.storage.manifests.archive_retention import ArchiveRetention, expire_archive
from dledger.storage.manifests.kept_snapshot import usable_snapshot
from dledger.storage.start.identity import IDENTITY_NAME
from dledger.storage.start.verify import Finding, verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.testing.group.checks.require import require
from dledger.testing.group.injection.damage import Rot
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.disk import MemberDied, PowerLoss, SimDisk
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from protocols.wire.ledger.entry import ENTRY_HEADER

#: Number in docs/invariants.md.
COPIES = 14
#: Share of the runs in which the machine with the copies loses power, or a write there fails.
CUT, FAILS = 0.15, 0.1
#: Share of the runs before which one of the two manifests of the copy rots.
ROTS = 0.15
#: Id of the groups that begin with a copy.
_NEW_ID = "c" * 32


@attrs.define
class KeptCopy:
    """A backup or an archive. @ivar end_index: its last entry; -1 for none."""

    directory: str
    is_archive: bool
    end_index: int = -1


class CopyKeeper:
    """
    See the module.

    @ivar disk: with the copies.
    @ivar kept: runs that went well.
    @ivar copies: the present backup and the present archive.
    """

    def __init__(self, cluster: SimCluster, rng: random.Random, damage: Rot) -> None:
        """@param damage: says whether files were damaged."""
        self._damage = damage
        self.disk = SimDisk(cluster.random("copies"))
        self.kept = 0
        self._cluster = cluster
        self._rng = rng
        self._era = cluster.history.era
        self._begun = 0
        self.copies = [self._new(is_archive=False), self._new(is_archive=True)]

    def _new(self, *, is_archive: bool) -> KeptCopy:
        self._begun += 1
        return KeptCopy(f"/kept/{self._begun}", is_archive)

    def _note(self, text: str) -> None:
        self._cluster.trace.note(self._cluster.clock.now_us, f"operator: {text}")

    @property
    def knows_damage(self) -> bool:
        """Whether a file of a member was damaged so far."""
        return self._cluster.world.chunks.is_rotten or self._damage.has_lost_blocks

    @property
    def _now_s(self) -> int:
        return self._cluster.clock.now_us // 1_000_000

    def _chosen(self) -> KeptCopy:
        """A backup or an archive; a new one, if acknowledged entries may be lost since."""
        if self._era != self._cluster.history.era:
            self._era = self._cluster.history.era
            self.copies = [self._new(is_archive=False), self._new(is_archive=True)]
        return self._rng.choice(self.copies)

    # -- keeping ----------------------------------------------------------------------------------

    def keep(self, member: SimMember) -> None:
        """Look at the files of a member, and copy what a backup or an archive lacks."""
        path = member.config.self_path
        if member.is_away or not member.disk.exists(f"{path}/{IDENTITY_NAME}"):
            return
        copy, files = self._chosen(), member.disk.clone()
        self._verify(member, files)
        if self._rng.random() < ROTS:
            self._rot(copy)
        chance = self._rng.random()
        if chance < CUT:
            self.disk.arm(die_in=1 + int(self._rng.random() * 30), death=PowerLoss)
        elif chance < CUT + FAILS:
            self.disk.arm(writes=1)
        else:
            chance = 1.0
        try:
            source = ArchiveSource.open(files, path)
            try:
                self._run(copy, source)
                self.kept += 1
            finally:
                source.close()
        except MemberDied:
            self.disk.lose_power()
        except DLedgerError as error:
            self._note(f"{member.member_id} is not copied to {copy.directory}: {error}")
            self._judge_refusal(member, copy, error, is_disk=chance < 1.0)
        self.disk.disarm()
        self._check(copy)

    def _run(self, copy: KeptCopy, source: ArchiveSource) -> None:
        place = DirectoryPlace(self.disk, copy.directory)
        if copy.is_archive and self._rng.random() < 0.3 and (
            read_archive(self.disk, copy.directory).manifest is not None
        ):
            rule = ArchiveRetention(keep_bytes=2 * source.reader.data_file_size,
                                    keep_s=self._rng.choice((None, 5.0)))
            deletes = self._rng.random() < 0.8
            expire_archive(place, rule, now_s=self._now_s, deletes=deletes)
        is_backup = copy.is_archive == (self.kept % 4 == 3)  # (each fourth run is of the other kind)
        wanted = source.reader.committed_index if is_backup else closed_index(source)
        reported = archive_log(source, place, is_backup=is_backup, taken_s=self._now_s)
        require(reported.end_index == max(wanted, copy.end_index), COPIES,
                f"a copy of {source.reader.path}, which has entries up to {wanted} for it: {reported}")
        copy.end_index = reported.end_index

    def _rot(self, copy: KeptCopy) -> None:
        """One of two manifests rots, if both are sound."""
        state = read_archive(self.disk, copy.directory)
        paths = [f"{copy.directory}/{name}" for name in SLOT_NAMES]
        if state.manifest is None or state.trouble or not all(map(self.disk.exists, paths)):
            return
        path = self._rng.choice(paths)
        at = int(self._rng.random() * len(self.disk.read_anyway(path)))
        self._note(f"a bit flipped in {path} at {at}")
        self.disk.flip_bit(path, at, int(self._rng.random() * 8))

    def _judge_refusal(
        self, member: SimMember, copy: KeptCopy, error: DLedgerError, *, is_disk: bool
    ) -> None:
        """Rule 3. A copy that this member cannot continue is given up for a new one, now and then."""
        mirror = self._cluster.invariants.mirror(member.member_id)
        is_apart = isinstance(error, DirectoryError)
        is_damage = isinstance(error, StoreError) and (is_disk or self.knows_damage)
        is_torn = isinstance(error, StoreError) and member.may_be_torn
        require(is_apart or is_damage or is_torn, COPIES, f"{member.member_id} was not copied: {error}")
        if is_apart and mirror.begin_index > copy.end_index + 1 and self._rng.random() < 0.5:
            self.copies[copy.is_archive] = self._new(is_archive=copy.is_archive)

    def _verify(self, member: SimMember, files: SimDisk) -> None:
        """Rule 4. What was damaged may be mended by now; a look at it ends well, and says where damage is."""
        path = member.config.self_path
        try:
            found = verify_directory(files, path).findings
        except DLedgerError as error:
            require(self.knows_damage, COPIES, f"{member.member_id} is sound, and not verified: {error}")
            return
        if not self.knows_damage and member.is_up:
            news = [one for one in found if not _is_known(member, one)]
            require(not news, COPIES, f"{member.member_id} is sound, but has findings: {news[:3]}")
        wrong = [one for one in found if one.file != path and not one.file.startswith(f"{path}/")]
        require(not wrong, COPIES, f"{member.member_id}: findings of another directory: {wrong[:3]}")

    # -- copies -----------------------------------------------------------------------------------

    def _check(self, copy: KeptCopy, *, is_over: bool = False) -> None:
        """Rules 1 and 2. @param is_over: all faults are over, and everything is committed."""
        try:
            manifest = opened_archive(self.disk, copy.directory)
        except DirectoryError as error:
            require(copy.end_index < 0, COPIES, f"{copy.directory} is gone: {error}")
            return
        report = verify_archive(self.disk, copy.directory)
        findings = [one for one in report.findings  # (an older manifest counts, until the next run)
                    if "another copy" not in one.sentence]
        require(not findings, COPIES, f"{copy.directory} is not sound: {findings[:3]}")
        require(manifest.end_index >= copy.end_index, COPIES,
                f"{copy.directory} ended with {copy.end_index}, now with {manifest.end_index}")
        copy.end_index = manifest.end_index
        records = b"".join(batch.records for batch in archive_batches(self.disk, copy.directory, manifest))
        invariants, index, at = self._cluster.invariants, manifest.begin_index, 0
        while at < len(records):
            term = ENTRY_HEADER.unpack_from(records, at)[3]
            is_owed = self._era > 0 and not is_over  # (its commit may be known to a mark alone by now)
            require(invariants.committed.get(index, term if is_owed else -1) == term, COPIES,
                    f"{copy.directory} has ({index}, t{term}), which is not committed")
            record, _ = invariants.records[index, term]
            require(records[at : at + len(record)] == record, COPIES,
                    f"{copy.directory} has another entry at {index}")
            at += len(record)
            index += 1
        require(index == manifest.end_index + 1, COPIES, f"{copy.directory} has no entry {index}")

    def give_back(self, member: SimMember) -> bool:
        """
        A member has lost its directory: it begins with the entries of a copy.

        @return: False: there is no copy.
        """
        copy = self._chosen()
        if copy.end_index < 0:
            return False
        reported = restore_archive(self.disk, copy.directory, member.config, member.disk, GroupName(),
                                   joins=True)
        require(reported.end_index == copy.end_index, COPIES, f"{member.member_id} was restored: {reported}")
        self._note(f"{member.member_id} begins with entries up to {reported.end_index}")
        return True

    # -- the end ----------------------------------------------------------------------------------

    def judge(self) -> None:
        """
        A new group begins with each copy, and has its entries.

        @raise InvariantError: an entry is missing, or another one.
        """
        self._chosen()
        for copy in self.copies:
            self._check(copy, is_over=True)
            if copy.end_index < 0:
                continue
            disk = SimDisk(self._rng)
            config = next(iter(self._cluster.members.values())).config
            if not self._begins(copy, config, disk):
                continue
            findings = verify_directory(disk, config.self_path).findings
            require(not findings, COPIES, f"a restored member is damaged: {findings[:3]}")
            require(not disk.exists(f"{config.store_base_dir}/{RESTORING_NAME}/dledger-{config.self_id}"),
                    COPIES, "a restore left something behind")
            store = FileStore.open(config, disk)
            require(store.committed_index >= copy.end_index and not store.identity.is_unsure, COPIES,
                    f"a restored member knows {store.committed_index} of {copy.end_index}")
            self._compare(store, copy)
            store.abandon()

    def _begins(self, copy: KeptCopy, config: DLedgerConfig, disk: SimDisk) -> bool:
        """Rule 5. @return: whether there is a new member."""
        problem = verify_archive(self.disk, copy.directory).start_problem
        try:
            reported = restore_archive(self.disk, copy.directory, config, disk, GroupName(_NEW_ID, 0, True))
        except DirectoryError as error:
            require(bool(problem) and problem in str(error), COPIES,
                    f"no group from {copy.directory}: {error}")
            return False
        require(not problem, COPIES, f"a group began with {copy.directory}, but {problem}")
        machine = opened_archive(self.disk, copy.directory).machine
        usable = usable_snapshot(machine, reported.begin_index, reported.end_index)
        require(reported.snapshot_index == (-1 if usable is None else usable.index), COPIES,
                f"{copy.directory} has {usable}, the member after {reported.snapshot_index}")
        if usable is not None:
            check_snapshot(disk, f"{config.self_path}/{usable.name}")
        return True

    def _compare(self, store: FileStore, copy: KeptCopy) -> None:
        invariants, index = self._cluster.invariants, store.ledger_begin_index
        while index <= copy.end_index:
            batch = store.read_batch(index, max_count=copy.end_index + 1 - index, max_bytes=1 << 20)
            records = b"".join(invariants.records[at, invariants.committed[at]][0]
                               for at in range(index, batch.last_index + 1))
            require(batch.records == records, COPIES, f"a restored member has other entries from {index} on")
            index = batch.last_index + 1


def _is_known(member: SimMember, one: Finding) -> bool:
    """
    Whether a member knows of a finding: it must get entries back, as a process ended in a cut for a log that
    begins anew; or a row of checksums could not be written, and is ended when it keeps house next.
    """
    ledger, path = member.ledger, member.config.self_path
    if one.file == f"{path}/{COMMIT_MARK_NAME}":
        return 0 <= ledger.repair_end_index == one.index
    return bool(ledger.parts.sums.trouble) and one.file.startswith(f"{path}/{CHUNKS.name.partition('/')[0]}/")
