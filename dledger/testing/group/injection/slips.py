# -*- test-case-name: tests.sim.test_slips -*-
"""
Mistakes of an operator of a simulated group: orders that make no sense, copies at the wrong place, copies
that rot.

Rule 1: an order to change the members that changes nothing, or is dry, writes no entry, and its answer says
what is so.
Rule 2: a backup, an archive or a restore at a wrong place is refused, and changes no file there.
Rule 3: a look at a copy finds each change of its entries, and no member begins with them.
Rule 4: a survivor begins a new group with every entry that it had.

The mistakes with files happen to a copy of a disk: the group goes on as if there were none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

import attrs
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from dledger.storage.backups.archive import archive_log
from dledger.storage.backups.group_setup import force_new_group, survivor
from dledger.storage.backups.reader import opened_archive, verify_archive
from dledger.storage.backups.restore import RESTORING_NAME, restore_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.manifests.archive_place import PART_SUFFIX, DirectoryPlace
from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.testing.group.checks.require import require
from dledger.testing.group.injection.keeper import COPIES, CopyKeeper, KeptCopy
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.disk import SimDisk
from dledger.values.errors import DirectoryError, DLedgerError
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import ADD, MOVE, PROMOTE, REMOVE
from dledger.values.option_values import with_values
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import MembershipRequest, MembershipResponse, Response

#: Number in docs/invariants.md.
MEMBERS = 9
#: Id of a group that a survivor begins.
_NEW_ID = "d" * 32
_AS_IT_IS: Mapping[str, str] = {}
_NO_MEMBER = ("n99", "", "a b", "x" * 300)
_NO_ADDRESS = ("", "nowhere", "n99.sim:0", "n99.sim:20911")


class Slips:
    """
    See the module.

    @ivar reported: mistakes so far, by kind: C{order}, C{place}, C{rot}, C{survivor}.
    """

    def __init__(self, cluster: SimCluster, rng: random.Random, keeper: CopyKeeper) -> None:
        self.reported: dict[str, int] = {}
        self._cluster = cluster
        self._rng = rng
        self._keeper = keeper

    def _count(self, kind: str) -> None:
        self.reported[kind] = self.reported.get(kind, 0) + 1

    # -- orders -----------------------------------------------------------------------------------

    def order(self, member: SimMember) -> None:
        """Ask a member for a change of the members that makes no sense, or for a dry run."""
        if not member.is_serving or member.service.node is None:
            return
        rng, addresses = self._rng, self._cluster.addresses
        is_dry = rng.random() < 0.6
        change = rng.choice((ADD, PROMOTE, REMOVE, MOVE))
        known, there = rng.choice(list(addresses.items()))
        if is_dry and rng.random() < 0.7:
            member_id, address = rng.choice((known, known, "n99")), rng.choice((there, "n99.sim:20911"))
        elif change == REMOVE or rng.random() < 0.4:
            member_id, address = rng.choice(_NO_MEMBER), rng.choice(_NO_ADDRESS[:3])
            change = rng.choice((change, "dance"))
        else:  # it is so already, or the address is that of another one
            member_id, address = rng.choice((known, "n99")), there
            change = change if member_id == known or change == ADD else PROMOTE
        request = MembershipRequest(
            group=member.config.group, remote_id=member.member_id, change=change, member_id=member_id,
            address=address if change in (ADD, MOVE) else "", is_dry=is_dry, is_forced=rng.random() < 0.3,
        )
        reported = partial(self._ordered, member, request)
        member.call(lambda node: node.router.ask(request).addCallbacks(
            reported, lambda failure: failure.trap(DLedgerError, CancelledError) and None
        ).addErrback(self._broken))

    def _broken(self, failure: Failure) -> None:
        assert failure.value is not None
        self._cluster.bugs.note(failure.value)

    def _ordered(self, member: SimMember, request: MembershipRequest, answer: Response) -> None:
        self._count("order")
        what = f"{member.member_id} answered {request.change} {request.member_id[:20]!r}: {answer}"
        assert isinstance(answer, MembershipResponse), what
        require(answer.index < 0 or not request.is_dry, MEMBERS, f"{what}: a dry run has an entry")
        if answer.code is not ResponseCode.SUCCESS:
            # (Nothing says so of a change that was asked of a leader whose time is over.)
            require(bool(answer.reason), MEMBERS, f"{what}: without a reason")
            return
        then = {**answer.voters, **answer.learners}
        is_in_force = {
            ADD: then.get(request.member_id) == request.address, PROMOTE: request.member_id in answer.voters,
            REMOVE: request.member_id not in then, MOVE: then.get(request.member_id) == request.address,
        }
        hands_over = answer.reason.startswith("the leader would hand over")
        require(is_in_force[request.change] and (hands_over or bool(answer.voters)), MEMBERS, what)

    # -- places -----------------------------------------------------------------------------------

    def misplace(self, member: SimMember) -> None:
        """An operator names a wrong directory."""
        keeper = self._keeper
        copy = self._rng.choice(keeper.copies)
        if copy.end_index < 0 or member.is_away:
            return
        disk, files = keeper.disk.clone(), member.disk.clone()
        tries = [self._source_nowhere, self._twice_at_a_time, self._foreign, self._onto_a_member,
                 self._beside_a_restore, self._of_another_group, self._nobody_survives]
        self._rng.choice(tries)(copy, disk, files, member)
        self._count("place")

    def _refused(self, what: str, disk: SimDisk, act: Callable[[], object]) -> None:
        before = disk.files_below("")
        try:
            done = act()
        except DLedgerError as error:
            # (What cannot be read any more is another matter.)
            is_right = isinstance(error, DirectoryError) or self._keeper.knows_damage
            require(is_right, COPIES, f"{what} was refused as if a file were damaged: {error}")
        else:
            require(False, COPIES, f"{what} was done: {done}")
        after = disk.files_below("")
        changed = sorted(  # (what a run that was cut short left may go)
            path for path in before if after.get(path) != before[path] and not path.endswith(PART_SUFFIX)
        )
        require(not changed, COPIES, f"{what} was refused, but {changed[:3]} changed")

    def _source_nowhere(self, _: KeptCopy, disk: SimDisk, files: SimDisk, member: SimMember) -> None:
        for path in (member.config.store_base_dir, "/nowhere", f"{member.config.self_path}/data"):
            self._refused(f"a look at {path}", files, lambda: verify_directory(files, path))  # noqa: B023
            self._refused(f"a backup of {path}", files, lambda: ArchiveSource.open(files, path))  # noqa: B023
        for path in ("/", "/nowhere"):
            self._refused(f"a look at {path}", disk, lambda: opened_archive(disk, path))  # noqa: B023

    def _keep(
        self, copy: KeptCopy, directory: str, disk: SimDisk, files: SimDisk, member: SimMember,
        other: Mapping[str, str] = _AS_IT_IS,
    ) -> object:
        """A run of the kind of C{copy}. @param other: fields of the source that are not as they should be."""
        source = ArchiveSource.open(files, member.config.self_path)
        try:
            return archive_log(with_values(source, other), DirectoryPlace(disk, directory),
                               is_backup=not copy.is_archive, taken_s=0)
        finally:
            source.close()

    def _twice_at_a_time(self, copy: KeptCopy, disk: SimDisk, files: SimDisk, member: SimMember) -> None:
        lock = disk.lock(f"{copy.directory}/lock")
        self._refused("a second run at a time", disk,
                      lambda: self._keep(copy, copy.directory, disk, files, member))
        lock.close()

    def _foreign(self, copy: KeptCopy, disk: SimDisk, files: SimDisk, member: SimMember) -> None:
        disk.makedirs("/shelf/data")
        name = self._rng.choice(("/shelf/letters", "/shelf/data/letters"))
        disk.write_file(name, b"dear")
        self._refused(f"a copy beside {name}", disk,
                      lambda: self._keep(copy, "/shelf", disk, files, member))

    def _of_another_group(self, copy: KeptCopy, disk: SimDisk, files: SimDisk, member: SimMember) -> None:
        knows_id = bool(opened_archive(disk, copy.directory).group_id)  # (a young group may have none)
        other = {"group_id": _NEW_ID} if knows_id and self._rng.random() < 0.5 else {"group": "another"}
        self._refused("a copy of another group", disk,
                      lambda: self._keep(copy, copy.directory, disk, files, member, other))
        config = attrs.evolve(member.config, group="another", store_base_dir="/new")
        self._refused("a member of another group", files, lambda: restore_archive(
            disk, copy.directory, config, files, GroupName(), joins=True))

    def _onto_a_member(self, copy: KeptCopy, disk: SimDisk, files: SimDisk, member: SimMember) -> None:
        if files.exists(member.config.self_path):
            self._refused("a restore onto a member", files, lambda: restore_archive(
                disk, copy.directory, member.config, files, GroupName(), joins=True))
        config = attrs.evolve(member.config, data_store_path="/elsewhere", store_base_dir="/new")
        self._refused("a restore with data elsewhere", files, lambda: restore_archive(
            disk, copy.directory, config, files, GroupName(_NEW_ID, 0, True)))

    def _beside_a_restore(self, copy: KeptCopy, disk: SimDisk, files: SimDisk, member: SimMember) -> None:
        config = attrs.evolve(member.config, store_base_dir="/new")
        left = f"/new/{RESTORING_NAME}/dledger-{config.self_id}"
        files.makedirs(left)
        files.write_file(f"{left}/part", b"left")
        self._refused("a restore where one was cut short", files, lambda: restore_archive(
            disk, copy.directory, config, files, GroupName(), joins=True))

    def _nobody_survives(self, _: KeptCopy, disk: SimDisk, files: SimDisk, member: SimMember) -> None:
        config = attrs.evolve(member.config, store_base_dir="/new")
        self._refused("a group of nobody", files, lambda: survivor(config, files))
        self._refused("a group of nobody", files, lambda: force_new_group(
            config, files, GroupName(_NEW_ID, 0, True)))

    # -- copies that rot --------------------------------------------------------------------------

    def spoil(self, _: SimMember) -> None:
        """A copy of a copy rots: a look at it says so, and no member begins with it."""
        keeper, rng = self._keeper, self._rng
        copy = rng.choice(keeper.copies)
        if copy.end_index < 0:
            return
        disk = keeper.disk.clone()
        manifest = opened_archive(disk, copy.directory)
        path = f"{copy.directory}/{rng.choice(manifest.pieces).name}"
        content, chance = disk.read_anyway(path), rng.random()
        at = int(rng.random() * len(content))
        if chance < 0.6:
            what = "a bit flipped"
            disk.flip_bit(path, at, int(rng.random() * 8))
        elif chance < 0.8:
            what = "truncated"
            disk.write_file(path, content[:at])
        else:
            what = "gone"
            disk.unlink(path)
        self._count("rot")
        findings = verify_archive(disk, copy.directory).findings
        require(bool(findings), COPIES, f"{path} is rotten ({what} at {at}), and a look at it finds nothing")
        config = attrs.evolve(next(iter(self._cluster.members.values())).config, store_base_dir="/new")
        self._refused_as_damaged(path, lambda: restore_archive(
            disk, copy.directory, config, disk, GroupName(_NEW_ID, 0, True)))
        require(not disk.exists(config.self_path), COPIES, f"a member begins with {path}, which is rotten")

    @staticmethod
    def _refused_as_damaged(path: str, act: Callable[[], object]) -> None:
        try:
            done = act()
        except DLedgerError:
            return
        require(False, COPIES, f"{path} is rotten, and was restored: {done}")

    # -- survivors --------------------------------------------------------------------------------

    def survive(self, member: SimMember) -> None:
        """All others are lost: the member begins a new group, with its entries."""
        files, config = member.disk.clone(), member.config
        if member.is_away or not files.exists(f"{config.self_path}/data"):
            return
        try:
            end_index = force_new_group(config, files, GroupName(_NEW_ID, 0, True))
        except DLedgerError as error:
            require(self._keeper.knows_damage or member.is_small_damaged or isinstance(error, DirectoryError),
                    COPIES, f"{member.member_id} is sound, and cannot survive: {error}")
            return
        self._count("survivor")
        mirror = self._cluster.invariants.mirror(member.member_id)
        if member.is_up and not self._keeper.knows_damage:
            require(end_index in (mirror.end_index, mirror.end_index + 1), COPIES,
                    f"{member.member_id} survives with {end_index}, it had {mirror.end_index}")
        store = FileStore.open(config, files)
        require(not store.identity.is_unsure and store.repair_end_index < 0, COPIES,
                f"{member.member_id} survives, and is not sure: {store.identity}")
        store.abandon()
