# -*- test-case-name: tests.storage.test_identity -*-
"""
C{identity}: whose directory this is, who else belongs to the group, and what the last process promised.

A file of ours beside Java's, with two slots (L{dledger.base.disk.two_slots}), written in place. A directory
of Java's, with a ledger and without this file, is adopted: it belongs to the group, the member and the
members that it is opened with.

Its version is that of the directory: a program that changes the format of any file of ours in it raises this
number, in both slots, before it writes such a file. So an earlier program refuses the directory.

A directory without any file of a ledger is I{new}. Its member cannot know whether its group is new, too, or
whether its disk was lost or is not mounted: it is I{unsure} until it holds all that a leader has. In a new
group the votes of all members together elect the first leader (L{dledger.core.election.elector}, rule 7); an
operator who cannot wait for all says C{bootstrap}.

With C{async} flushing a loss of power takes entries that were acknowledged. A member that was not closed in
order and wakes under another boot of its machine may have lost some: it is I{unsure} until it holds all that
a leader has, see L{dledger.core.replication.leader_claims}. That is recorded here, and survives further
restarts.
"""

from __future__ import annotations

from hashlib import sha256

import attrs
from construct import Int32sb, Int64sb, Struct

from dledger.base.disk.disk import Disk, is_no_room
from dledger.base.disk.guard import DiskGuard
from dledger.base.disk.hints import Hints
from dledger.base.disk.two_slots import SLOT_SIZE, SlotFile, SlotForm
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME
from dledger.storage.files.met_members import MetMembers
from dledger.storage.files.term_file import TERM_FILE_NAME, TERM_TWIN_NAME
from dledger.storage.start.configurations import MEMBERS_NAME, WITHOUT_LIST, has_list
from dledger.values.errors import DirectoryError
from dledger.values.ledger.config import GROUP_BYTES_MAX, ID_BYTES_MAX, DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.lineage import Lineage, Standing

IDENTITY_NAME = "identity"

#: C{unsure} of a directory that began empty.
UNSURE_NEW = 2
#: C{unsure} of a directory that another member has met otherwise: C{bootstrap} does not end it.
UNSURE_DOUBTED = 3

IDENTITY_DECLARATION = Struct(
    "magic" / Int32sb,
    "version" / Int32sb,
    "generation" / Int64sb,  # grows with every write
    "was_async" / Int32sb,  # 1: the last process acknowledged entries before they were flushed
    "unsure" / Int32sb,  # acknowledged entries may be lost: 1 by a loss of power, 2 and 3 with the directory
    "has_terms" / Int32sb,  # 1: term and vote were recorded once, so their files exist
    "group_term" / Int64sb,  # term of the leader that proposed the group's id; -1 without an id
    "is_group_known" / Int32sb,  # 1: a quorum holds this id
    "is_listed" / Int32sb,  # 1: the log names the members, so the file that lists them must exist
    "is_foreign" / Int32sb,  # 1: Java wrote the first entries, and no state of the group has begun since
    "is_proven" / Int32sb,  # 1: it was unsure in this incarnation, and had all that a leader had
    "incarnation" / Int64sb,  # of L{dledger.values.ledger.lineage}, as the next one; -1: none yet
    "starts" / Int64sb,
)


@attrs.frozen(kw_only=True)
class Identity:
    """
    Content of a slot. Fields without a line here: see the declaration.

    @ivar boot_id: of the machine's boot under which the last process ran; empty if not known.
    @ivar group_id: id of the group, see L{dledger.core.election.naming}; empty if it has none yet.
    @ivar members: of the start list, as of L{listed_members}.
    """

    group: str
    member_id: str
    boot_id: str
    group_id: str = ""
    members: str = ""
    was_async: int = 0
    unsure: int = 0
    has_terms: int = 0
    group_term: int = -1
    is_group_known: int = 0
    is_listed: int = 0
    is_foreign: int = 0
    is_proven: int = 0
    incarnation: int = -1
    starts: int = 0


_FORM = SlotForm(
    Identity, IDENTITY_DECLARATION, magic=0x444C4944, version=1,  # "DLID"
    unsound="neither slot is sound, so it is not known which member's files these are. If they are this "
    "member's, remove this one file: the directory is adopted then. But if it had a new disk, or lost power, "
    "and has not caught up since, give it an empty directory: it would vote without what it lost",
    texts=("group", "member_id", "boot_id", "group_id", "members"),
)
#: Bytes for the list of members; a boot id has 36, the id of a group 32.
_MEMBERS_BYTES = SLOT_SIZE - _FORM.size - 36 - 32 - GROUP_BYTES_MAX - ID_BYTES_MAX
read_identity = _FORM.read
identity_damage = _FORM.damage


def decode_identity(data: bytes) -> Identity | None:
    """Content of the file: its newest sound slot; None without one."""
    found = _FORM.newest(data)
    return None if found is None else found[1]


class IdentityFile(SlotFile[Identity]):
    """The open file."""

    form = _FORM


def listed_members(config: DLedgerConfig) -> str:
    """The ids of all members, C{n0;n1;n2} in order; a digest of that if the record has no room for it."""
    text = ";".join(sorted(config.peers))
    return text if len(text.encode()) <= _MEMBERS_BYTES else "#" + sha256(text.encode()).hexdigest()


def recorded_identity(config: DLedgerConfig, disk: Disk) -> Identity | None:
    """
    What the directory records; None if it records nothing. Nothing is changed.

    @raise DirectoryError: the files are another group's or another member's, or those of a group with other
        members, or the file is damaged.
    """
    path = f"{config.self_path}/{IDENTITY_NAME}"
    found = read_identity(disk, path)
    if found is None:
        return None
    identity = found[1]
    for what, option, recorded, given in (
        ("group", "--group", identity.group, config.group),
        ("member", "--node-id", identity.member_id, config.self_id),
    ):
        if recorded != given:
            raise DirectoryError(
                f"{config.self_path} belongs to {what} {recorded!r}, but is opened as {what} {given!r}: "
                f"start with {option} {recorded}, or give this member another directory. If the {what} was "
                f"renamed on every member, remove {path}; then the directory is adopted"
            )
    if has_list(disk, f"{config.self_path}/{MEMBERS_NAME}"):  # the log names the members
        return identity
    if not identity.is_listed:
        _check_members(config, identity)
    elif not config.accept_new_members:
        raise DirectoryError(
            f"{config.self_path}/{MEMBERS_NAME} is missing: the members of this group changed by its log, "
            "and that file lists them. Without it this member would count the wrong ones. "
            f"{WITHOUT_LIST}. If a majority is lost for good, see dledger group --help"
        )
    return identity


def _check_members(config: DLedgerConfig, identity: Identity) -> None:
    if config.accept_new_members or identity.members == listed_members(config):
        return
    known = "members that --peers does not name exactly" if identity.members.startswith("#") else (
        f"the members {', '.join(identity.members.split(';'))}")
    raise DirectoryError(
        f"{config.self_path} belongs to a group of {known}, but --peers names "
        f"{', '.join(sorted(config.peers))}: two lists of members make two majorities. Start with the list "
        "of the group. To change the members, stop all of them, then start each one once with the new "
        "--peers and --set accept_new_members=true. If a majority is lost for good, see dledger group --help"
    )


def identity_now(
    config: DLedgerConfig, recorded: Identity | None, boot_id: str, *, is_clean: bool, is_empty: bool,
    is_new: bool, is_listed: bool,
) -> Identity:
    """
    What this process records at its start.

    @param is_clean: the last process closed the ledger in order.
    @param is_empty: the ledger has no entry, and owes none.
    @param is_new: the directory had no file of a ledger.
    @param is_listed: the directory has the file L{MEMBERS_NAME}.
    """
    is_doubted = recorded is not None and recorded.unsure == UNSURE_DOUBTED
    trusts = config.accept_unclean_start or (config.bootstrap and is_empty and not is_doubted)
    unsure = UNSURE_NEW if is_new and not trusts else 0
    if recorded is not None and not trusts:
        lost_power = bool(recorded.boot_id and boot_id) and recorded.boot_id != boot_id
        unsure = recorded.unsure or int(bool(recorded.was_async) and lost_power and not is_clean)
    before = recorded or Identity(group=config.group, member_id=config.self_id, boot_id="")
    is_listed = is_listed or bool(before.is_listed)  # then --peers need not be the start list any more
    is_proven = before.is_proven
    if recorded is not None and recorded.unsure and config.accept_unclean_start:
        is_proven = 1  # an operator's word
    return attrs.evolve(
        before, boot_id=boot_id, members=(is_listed and before.members) or listed_members(config),
        is_listed=int(is_listed), was_async=int(not config.is_sync), unsure=unsure,
        is_proven=is_proven,
    )


def is_without_records(config: DLedgerConfig, disk: Disk) -> bool:
    """Whether no file reports a commit, a term or a vote."""
    names = (COMMIT_MARK_NAME, TERM_FILE_NAME, TERM_TWIN_NAME)
    return not any(disk.exists(f"{config.self_path}/{name}") for name in names)


def begin_identity(
    config: DLedgerConfig, disk: Disk, boot_id: str, name: GroupName = GroupName()  # noqa: B008
) -> None:
    """
    Make the file in a new directory, before all other files: a start that is cut short leaves it new.

    @param name: the id of the group, if an operator knows it.
    @raise OSError: it could not be written.
    """
    first = attrs.evolve(
        identity_now(config, None, boot_id, is_clean=True, is_empty=True, is_new=True,
                     is_listed=False),
        group_id=name.id, group_term=name.term, is_group_known=int(name.is_known),
    )
    IdentityFile.create(disk, f"{config.self_path}/{IDENTITY_NAME}", first).close()


class MemberIdentity:
    """
    What is recorded about a ledger in use.

    @ivar had_entries: whether the directory held, or owed, entries written by us when it was opened.
    @ivar others: the other members as this one met them.
    """

    def __init__(self, config: DLedgerConfig, hints: Hints, guard: DiskGuard) -> None:
        self._disk = hints.disk
        self._path = f"{config.self_path}/{IDENTITY_NAME}"
        self._config = config
        self._guard = guard
        self._file: IdentityFile | None = None
        self._now = Identity(group=config.group, member_id=config.self_id, boot_id="")
        self.had_entries = self._is_owed = False
        self._run = -1
        self.others = MetMembers(hints, config.self_path)

    def begin(self, now: Identity) -> None:
        """
        Record what holds at this start.

        @raise OSError: it could not be written. Without room, a directory is adopted at a later start.
        """
        self._now = now
        try:
            self._file, _ = IdentityFile.open(self._disk, self._path, now)
        except OSError as error:
            if not is_no_room(error):
                raise
            return
        self._file.write_durably(now)

    @property
    def has_terms(self) -> bool:
        """Whether term and vote were recorded beside this ledger before: then their files must exist."""
        return self.had_entries or bool(self._now.has_terms)

    def note_terms(self) -> None:
        """Record, durably, that the files of term and vote exist. @raise StoreError: that failed."""
        if not self._now.has_terms:
            self._record(attrs.evolve(self._now, has_terms=1))

    @property
    def is_unsure(self) -> bool:
        """Whether entries that this member acknowledged may be missing here."""
        return bool(self._now.unsure)

    @property
    def forgot_terms(self) -> bool:
        """Whether that is so because the directory began empty: terms of an earlier one are not known."""
        return self._now.unsure in (UNSURE_NEW, UNSURE_DOUBTED)

    def end_unsure(self) -> None:
        """
        Record that nothing is missing: durably, or when there is room again. A crash before that leaves it
        unsure.

        @raise StoreError: that failed.
        """
        self._record(attrs.evolve(self._now, unsure=0, is_proven=1), may_wait=True)

    def begin_run(self, new_incarnation: int, run: int) -> None:
        """
        Count this start, durably; until then L{lineage} is not known.

        @param new_incarnation: of a directory that has none.
        @raise StoreError: it could not be written.
        """
        now = attrs.evolve(self._now, starts=self._now.starts + 1)
        if now.incarnation < 0:
            now = attrs.evolve(now, incarnation=new_incarnation, is_proven=0)
        self._record(now)
        self._run = run

    @property
    def lineage(self) -> Lineage | None:
        """What this member says to the others about its directory; None if it cannot be recorded."""
        now = self._now
        if self._file is None or self._run < 0:
            return None
        proven = Standing.PROVEN if now.is_proven else Standing.TRUSTED
        return Lineage(incarnation=now.incarnation, starts=now.starts, run=self._run,
                       standing=Standing.JOINING if now.unsure else proven)

    def doubt(self, new_incarnation: int) -> None:
        """
        Record, durably, that entries, terms and votes of this member may be missing here: another member has
        met it otherwise.

        @param new_incarnation: from now on; -1: the present one stays.
        @raise StoreError: that failed.
        """
        now = self._now if new_incarnation < 0 else attrs.evolve(
            self._now, incarnation=new_incarnation, starts=1)
        self._record(attrs.evolve(now, unsure=UNSURE_DOUBTED, is_proven=0))

    @property
    def group_name(self) -> GroupName:
        """The id of the group, as far as it is known."""
        return GroupName(self._now.group_id, self._now.group_term, bool(self._now.is_group_known))

    @property
    def is_listed(self) -> bool:
        """Whether the log names the members, not C{--peers}."""
        return bool(self._now.is_listed)

    def record_listed(self, is_listed: bool) -> None:
        """
        Record, durably, whether the log names the members.

        @raise StoreError: that failed; or the start list counts again, and C{--peers} is another one.
        """
        if is_listed == self.is_listed:
            return
        config, start_list = self._config, self._now.members
        members = listed_members(config)
        if not is_listed and start_list != members and not config.accept_new_members:
            raise self._guard.fail(
                "the change of the members that this member had was taken back, so the members are again "
                f"{start_list.replace(';', ', ')}, but --peers names {', '.join(sorted(config.peers))}: "
                "start with the list of the group"
            )
        self._record(attrs.evolve(self._now, members=start_list if is_listed else members,
                                  is_listed=int(is_listed)))

    def note_foreign(self, is_foreign: bool) -> None:
        """
        Record that Java wrote the first entries, and no state of the group has begun since; or that one has.

        @raise StoreError: that failed.
        """
        if is_foreign != bool(self._now.is_foreign):
            self._record(attrs.evolve(self._now, is_foreign=int(is_foreign)), may_wait=True)

    def record_group(self, name: GroupName) -> None:
        """
        Record the id of the group: durably, or when there is room again. A crash before that forgets it.

        @raise StoreError: that failed.
        """
        now = attrs.evolve(
            self._now, group_id=name.id, group_term=name.term, is_group_known=int(name.is_known)
        )
        self._record(now, may_wait=True)

    def check_point(self) -> None:
        """Write a record that found no room. @raise StoreError: that failed for another reason."""
        if self._is_owed:
            self._record(self._now, may_wait=True)

    def _record(self, identity: Identity, *, may_wait: bool = False) -> None:
        self._now = identity
        self._is_owed = False
        with self._guard.storing("writing the identity failed"):
            if self._file is None:
                return
            try:
                self._file.write_durably(identity)
            except OSError as error:
                if not may_wait or not is_no_room(error):
                    raise
                self._is_owed = True

    def close(self) -> None:
        """Release the handle."""
        if self._file is not None:
            self._file.close()
