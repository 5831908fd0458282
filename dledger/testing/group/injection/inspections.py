# -*- test-case-name: tests.sim.test_inspections -*-
"""
Damaged files of a simulated group, and those who read them: an operator who looks at a directory, a backup or
an archive that is made of it, and a member that starts on it. All of it happens to a copy of a disk: the
group goes on as if there were none.

Damaged is any file of a member's directory, or of a backup or an archive: bits, zeros, a file cut short,
lengthened, gone, or one that does not belong there, a sector that cannot be read, a read that fails now and
then; and a manifest that a program of another version may have written, with the right checksum.

Rule 1: whoever reads it comes to an end, or says why not: no other exception leaves.
Rule 2: a look finds each change of a record of a ledger that was sound.
Rule 3: a start on it finds entries that the member had, byte for byte, or says which are lost. If a committed
entry is lost, the member says so.
Rule 4: a copy that is made of it, or continued with it, has committed entries alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

import attrs

from dledger.storage.backups.archive import archive_log
from dledger.storage.backups.reader import archive_batches, opened_archive, verify_archive
from dledger.storage.backups.restore import restore_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.manifests.archive_place import DirectoryPlace
from dledger.storage.manifests.archive_retention import ArchiveRetention, expire_archive
from dledger.storage.manifests.document import encode_document
from dledger.storage.start.identity import IDENTITY_NAME
from dledger.storage.start.verify import VerifyReport, verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.testing.group.checks.require import InvariantError, require
from dledger.testing.group.injection.damage import Rot
from dledger.testing.group.injection.keeper import COPIES, CopyKeeper, KeptCopy
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.world.disk import SimDisk
from dledger.values.errors import DamagedEntryError, DLedgerError
from dledger.values.ledger.group_name import GroupName
from protocols.wire.ledger.entry import ENTRY_HEADER, iterate_records

#: Id of groups that begin with a copy.
_NEW_ID = "e" * 32
#: Files that belong to nobody.
_FOREIGN = ("letters", "data/letters", "data/00000000000000000007", "index/letters", "currterm.new")
#: Names in a manifest beside the one of its content.
_FRAME = ("format", "version", "version_sha256", "sha256")
#: Values for a field of a forged manifest.
_FORGED: tuple[object, ...] = (-1, 0, 1, 1 << 70, 1.5, "", "x", None, True, [], {}, ["x"], {"index": -1})


class Inspections:
    """
    See the module.

    @ivar reported: looks so far, by kind: C{found}, C{clean}, C{opened}, C{refused}, C{copied}, C{copy}.
    """

    def __init__(
        self, cluster: SimCluster, rng: random.Random, keeper: CopyKeeper, damage: Rot
    ) -> None:
        """@param damage: knows which records are on record as durable."""
        self._damage = damage
        self.reported: dict[str, int] = {}
        self._cluster = cluster
        self._rng = rng
        self._keeper = keeper

    def _count(self, kind: str) -> None:
        self.reported[kind] = self.reported.get(kind, 0) + 1

    # -- a member's directory -----------------------------------------------------------------------

    def look(self, member: SimMember) -> None:
        """Look at damaged copies of the files of a member, and start, back up and archive them."""
        path = member.config.self_path
        if member.is_away or not member.disk.exists(f"{path}/{IDENTITY_NAME}"):
            return
        committed_index, is_sound = self.start_on(member, member.disk.clone(), "what is sound"), False
        if not self._keeper.knows_damage:
            report = self._verify(member, member.disk.clone(), "what is sound")
            is_sound = report is not None and report.is_clean and member.is_up
        for _ in range(4):
            files = member.disk.clone()
            is_record = self._rng.random() < 0.4
            what = self._spoil_record(member, files) if is_record else self._spoil_any(files, path)
            if not what:
                continue
            report = self._verify(member, files, what)
            if is_record and is_sound:
                require(report is None or not report.is_clean, COPIES,
                        f"{member.member_id}: {what}, and a look finds nothing")
            self._count("clean" if report is not None and report.is_clean else "found")
            self._copy(member, files, what)
            found = self.start_on(member, files, what)
            if is_record and found is not None and committed_index is not None:
                require(found >= committed_index, COPIES, f"{member.member_id}: {what}, and it starts with "
                        f"{found} of {committed_index} committed entries, and owes none")

    def _spoil_record(self, member: SimMember, files: SimDisk) -> str:
        """
        Change a record in front of the end that is on record: one after it looks like a torn write.

        @return: what was done; empty: nothing.
        """
        rng, mirror = self._rng, self._cluster.invariants.mirror(member.member_id)
        durable = self._damage.durable_ends(member)
        if not durable:
            return ""
        at = rng.choice((0, durable - 1, int(rng.random() * durable)))
        index = mirror.begin_index + at
        size = self._cluster.invariants.record_size(member.member_id, index)
        place = mirror.ends[at] - size + rng.choice((0, 4, 8, 16, 20, 36, 40, int(rng.random() * size)))
        file_size = member.config.mapped_file_size_for_entry_data
        path = f"{member.config.self_path}/data/{place - place % file_size:020d}"
        offset = place % file_size
        if not files.exists(path) or offset >= files.file_size(path):
            return ""
        chance = rng.random()
        if chance < 0.6:
            files.flip_bit(path, offset, int(rng.random() * 8))
            return f"a bit of {index} flipped at {offset} of {path}"
        if chance < 0.8:
            files.write_file(path, files.read_anyway(path)[:offset])
            return f"{path} was cut before byte {offset}, in {index}"
        if mirror.ends[0] > place - place % file_size:
            return ""  # (without its first file a ledger is one that has expired)
        files.unlink(path)
        return f"{path} with {index} is gone"

    def _spoil_any(self, disk: SimDisk, directory: str) -> str:
        """Change a file. @return: what was done; empty: nothing."""
        rng, files = self._rng, disk.files_below(directory)
        if not files:
            return ""
        kinds: dict[str, list[str]] = {}
        for path in files:  # (of many files of a folder one counts as a small file beside it)
            kinds.setdefault(path.rpartition("/")[0] if path.count("/") > 2 else path, []).append(path)
        path = rng.choice(sorted(kinds[rng.choice(sorted(kinds))]))
        content = files[path]
        at = min(int(len(content) * rng.random() ** 3), max(len(content) - 1, 0))
        chance = rng.random()
        if chance < 0.3 and content:
            disk.flip_bit(path, at, int(rng.random() * 8))
            return f"a bit flipped at {at} of {path}"
        if chance < 0.4 and content:
            disk.overwrite(path, at, bytes(min(len(content) - at, 1 + int(rng.random() * 64))))
            return f"zeros at {at} of {path}"
        if chance < 0.5:
            disk.write_file(path, content[:at])
            return f"{path} was cut to {at}"
        if chance < 0.58:
            disk.write_file(path, content + rng.choice((b"more", content[-64:], bytes(64))))
            return f"{path} is longer"
        if chance < 0.68:
            disk.unlink(path)
            return f"{path} is gone"
        if chance < 0.74:
            name = f"{directory}/{rng.choice(_FOREIGN)}"
            disk.makedirs(name.rpartition("/")[0])
            disk.write_file(name, rng.choice((b"", b"dear")))
            return "a file that belongs to nobody"
        if chance < 0.86 and content:
            disk.spoil(path, at)
            return f"{at} of {path} cannot be read"
        if chance < 0.93 and content[:1] == b"{":
            return self._forge(disk, path, content)
        disk.arm(reads=int(rng.random() * 3), opens=int(rng.random() * 2))
        return "a read fails"

    def _forge(self, disk: SimDisk, path: str, content: bytes) -> str:
        """A field of a manifest has another value; its checksum is right."""
        try:
            document = json.loads(content)
        except ValueError:
            return ""
        form, version = document.get("format"), document.get("version")
        name = next((one for one in document if one not in _FRAME), "")
        if not name or not isinstance(document[name], dict):
            return ""
        chance = self._rng.random()
        if chance < 0.15:
            version = self._rng.choice((0, 99, "1"))
        elif chance < 0.2:
            form = "other"
        else:
            fields = list(_fields(document[name]))
            holder, key = self._rng.choice(fields)
            if chance < 0.3:
                del holder[key]  # type: ignore[arg-type]
            else:
                holder[key] = self._rng.choice(_FORGED)  # type: ignore[index]
        disk.write_file(path, encode_document(form, version, name, document[name]))
        return f"{path} is forged"

    # -- those who read -------------------------------------------------------------------------------

    def _tried(self, what: str, act: Callable[[], object]) -> object:
        """@return: what C{act} gives; None: it gave a reason. @raise InvariantError: rule 1."""
        try:
            return act()
        except DLedgerError:
            return None
        except InvariantError:
            raise
        except Exception as error:
            raise InvariantError(COPIES, f"{what}: {type(error).__name__}: {error}") from error

    def _verify(self, member: SimMember, files: SimDisk, what: str) -> VerifyReport | None:
        path = member.config.self_path
        report = self._tried(f"a look at {what}", lambda: verify_directory(files, path))
        assert report is None or isinstance(report, VerifyReport)
        return report

    def start_on(self, member: SimMember, files: SimDisk, what: str) -> int | None:
        """
        Rule 3.

        @return: up to here the member knows that it has, or had, the entries; None: it does not start.
        """
        store = self._tried(f"a start on {what}", lambda: FileStore.open(member.config, files))
        if store is None:
            self._count("refused")
            return None
        assert isinstance(store, FileStore)
        self._count("opened")
        invariants, mirror = self._cluster.invariants, self._cluster.invariants.mirror(member.member_id)
        index = store.ledger_begin_index
        while 0 <= index <= store.ledger_end_index:
            hole = next((one for one in store.holes if one.holds(index)), None)
            if hole is not None:
                index = hole.last_index + 1
                continue
            batch = self._tried(f"a read of {index} of {what}", lambda: store.read_batch(  # noqa: B023
                index, max_count=1, max_bytes=1))  # noqa: B023
            if batch is not None:
                ((header, _),) = iterate_records(batch)  # type: ignore[arg-type]
                term = mirror.term_of(index)
                is_cut = index > mirror.end_index  # (an entry that was being written, or cut)
                known = invariants.records.get((index, header.term))
                require(is_cut or (header.term == term and known is not None and (
                    batch.records == known[0])), COPIES,  # type: ignore[attr-defined]
                    f"{member.member_id} starts on {what}, and has another entry {index} of t{header.term}")
            index += 1
        end_index = max(store.ledger_end_index, store.repair_end_index)
        unsure = store.identity.is_unsure
        store.abandon()
        return 1 << 62 if unsure else end_index

    def _copy(self, member: SimMember, files: SimDisk, what: str) -> None:
        """Rule 4."""
        is_backup, disk, path = self._rng.random() < 0.5, SimDisk(self._rng), member.config.self_path
        source = self._tried(f"a source of {what}", lambda: ArchiveSource.open(files, path))
        if source is None:
            return
        assert isinstance(source, ArchiveSource)
        place = DirectoryPlace(disk, "/copy")
        self._tried(f"a copy of {what}", lambda: archive_log(source, place, is_backup=is_backup, taken_s=0))
        source.close()
        self._check_copy(disk, "/copy", what)
        self._count("copied")

    def _check_copy(self, disk: SimDisk, directory: str, what: str) -> None:
        def entries() -> int:
            manifest = opened_archive(disk, directory)
            invariants, count = self._cluster.invariants, 0
            wrong: list[str] = []  # judged at the end, as the checksum of a piece comes after its entries
            for batch in archive_batches(disk, directory, manifest):
                at = 0
                while at < len(batch.records):
                    _, size, index, term, *_ = ENTRY_HEADER.unpack_from(batch.records, at)
                    known = invariants.committed.get(index, term)
                    is_right = known == term and batch.records[at : at + size] == (
                        invariants.records[index, term][0])
                    if not is_right:
                        wrong.append(f"{index} of t{term}")
                    at, count = at + size, count + 1
            require(not wrong, COPIES, f"a copy of {what} has other entries: {wrong[:3]}")
            return count

        self._tried(f"a look at a copy of {what}", entries)

    # -- copies ---------------------------------------------------------------------------------------

    def look_at_copy(self, member: SimMember) -> None:
        """Look at damaged copies of a backup or an archive; start, continue and expire them."""
        rng, keeper = self._rng, self._keeper
        for _ in range(4):
            copy, disk = rng.choice(keeper.copies), keeper.disk.clone()
            if copy.end_index < 0:
                continue
            what = self._spoil_any(disk, copy.directory)
            if not what:
                continue
            self._count("copy")
            self._tried(f"a look: {what}", lambda: verify_archive(disk, copy.directory))  # noqa: B023
            self._check_copy(disk.clone(), copy.directory, what)
            self._begin_with(copy, disk.clone(), what)
            self._go_on(copy, disk, member, what)

    def _begin_with(self, copy: KeptCopy, disk: SimDisk, what: str) -> None:
        """Rule 3, of a new member."""
        config = attrs.evolve(next(iter(self._cluster.members.values())).config, store_base_dir="/new")
        files = SimDisk(self._rng)
        reported = self._tried(f"a restore: {what}", lambda: restore_archive(
            disk, copy.directory, config, files, GroupName(_NEW_ID, 0, True)))
        if reported is None:
            require(not files.exists(config.self_path), COPIES, f"{what}: refused, and begun with")
            return
        store = FileStore.open(config, files)
        invariants, index = self._cluster.invariants, store.ledger_begin_index
        while 0 <= index <= min(store.ledger_end_index, copy.end_index):
            try:
                batch = store.read_batch(index, max_count=1, max_bytes=1)
            except DamagedEntryError as error:
                require(False, COPIES, f"{what}: restored without {index}: {error}")
                break
            term = ENTRY_HEADER.unpack_from(batch.records)[3]
            require(batch.records == invariants.records[index, term][0]
                    and invariants.committed.get(index, term) == term, COPIES,
                    f"{what}: a member begins with another entry {index} of t{term}")
            index += 1
        store.abandon()

    def _go_on(self, copy: KeptCopy, disk: SimDisk, member: SimMember, what: str) -> None:
        """Rule 4: the next run, and one that expires segments."""
        path = member.config.self_path
        if member.is_away or not member.disk.exists(f"{path}/{IDENTITY_NAME}"):
            return
        place = DirectoryPlace(disk, copy.directory)
        if copy.is_archive and self._rng.random() < 0.4:
            rule = ArchiveRetention(keep_bytes=self._rng.choice((1, 4096)), keep_s=None)
            self._tried(f"an expiry: {what}",
                        lambda: expire_archive(place, rule, now_s=1 << 40, deletes=True))
        source = self._tried(what, lambda: ArchiveSource.open(member.disk.clone(), path))
        if source is None:
            return
        assert isinstance(source, ArchiveSource)
        self._tried(f"the next run: {what}", lambda: archive_log(
            source, place, is_backup=not copy.is_archive, taken_s=0))
        source.close()
        self._check_copy(disk, copy.directory, what)


def _fields(content: object) -> Iterator[tuple[dict[str, object] | list[object], str | int]]:
    """Each field in a document, with what holds it."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield content, key
            yield from _fields(value)
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield content, number
            yield from _fields(value)
