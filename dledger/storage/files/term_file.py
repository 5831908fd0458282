# -*- test-case-name: tests.storage.test_term_file -*-
"""
Term and vote of a member, durable before the answer that depends on them: C{currterm} and its twin
C{termvote}.

C{currterm} has the lines of Java's file, and a seal (L{sealed}). If it does not fit, the file is unsound;
Java writes none. Unlike in Java, the file is replaced by rename after fsync, so that it always exists and is
whole. A replacement needs room on the disk. So each save first
writes the twin: a file of ours with two slots (L{dledger.base.disk.two_slots}), with a checksum each, written
in place. A save without room for C{currterm} succeeds, and L{TermFile.check_point} writes it
later. Where a write in place needs room, too (file systems that copy on write, thin volumes), a save may be
refused: the member keeps term and vote to itself until they are saved.

At a start the larger term counts: Java may have run in between, or a save was interrupted. Of one term, a
vote counts more than none; two different votes are refused. An unsound file leaves the decision to the other.
If a crash of Java left no C{currterm}, its C{.tmp} and C{.bak} are read instead.

Source: MemberState.persistTerm and IOUtils.string2File (0.3.1.2); differs: docs/divergence.md W4.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs
from construct import Int32sb, Int64sb, Struct

from dledger.base.disk.disk import Disk, is_no_room
from dledger.base.disk.two_slots import SlotFile, SlotForm
from dledger.storage.files.properties import is_commented, is_sealed, java_long, property_pairs, sealed
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from protocols.wire.codes import ResponseCode

TERM_FILE_NAME = "currterm"
TERM_TWIN_NAME = "termvote"

TERM_TWIN_DECLARATION = Struct(
    "magic" / Int32sb,
    "version" / Int32sb,
    "generation" / Int64sb,  # grows with every write
    "term" / Int64sb,
)

_WAY_OUT = (
    "the vote of this member is not known, and a second vote in one term can lose acknowledged entries. "
    f"Put the files of one backup back; or remove {TERM_TWIN_NAME}, write the lines voteLeader= (empty) and "
    "currTerm=<a term above that of every member> into currterm, then start again"
)


@attrs.frozen
class TermVote:
    """A term and the member that got the vote in it; None without a vote."""

    term: int = 0
    voted_for: str | None = None


@attrs.frozen(kw_only=True)
class TermRecord:
    """Content of a slot of the twin; C{voted_for} is empty without a vote."""

    term: int
    voted_for: str


_FORM = SlotForm(
    TermRecord, TERM_TWIN_DECLARATION, magic=0x444C5456, version=1,  # "DLTV"
    unsound="neither slot is sound", texts=("voted_for",),
)
twin_damage = _FORM.damage


class TermTwin(SlotFile[TermRecord]):
    """The open twin."""

    form = _FORM


def encode_term(term: int, voted_for: str | None) -> bytes:
    """The bytes of C{currterm} as Java writes them."""
    return f"voteLeader={voted_for or ''}\ncurrTerm={term}\n".encode()


def seal_term(term: int, voted_for: str | None) -> bytes:
    """The bytes of C{currterm} as a member of ours writes them: those of Java, and the seal."""
    return sealed(encode_term(term, voted_for))


def decode_term(data: bytes, member_ids: Collection[str] = ()) -> TermVote | None:
    """
    Content of C{currterm}; None if it is malformed: it has the two keys, once each, and no others, and no
    seal of other lines.

    @param member_ids: a vote for any other member is malformed; empty: not checked.
    """
    if is_sealed(data) is False:
        return None
    pairs = property_pairs(data)
    found = dict(pairs)
    if len(pairs) != 2 or set(found) != {"voteLeader", "currTerm"}:
        return None
    term, voted_for = java_long(found["currTerm"]), _utf_8(found["voteLeader"])
    if term is None or term < 0 or (voted_for and member_ids and voted_for not in member_ids):
        return None
    return TermVote(term, voted_for or None)


def _utf_8(text: str) -> str:
    """Properties are read as Latin-1, and written as UTF-8."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def decode_term_twin(data: bytes) -> TermVote | None:
    """Content of the twin: its newest sound slot; None without one."""
    found = _FORM.newest(data)
    return None if found is None else TermVote(found[1].term, found[1].voted_for or None)


def term_damage(data: bytes) -> str:
    """What is wrong with the bytes of C{currterm}, as we or Java write them; empty if nothing is."""
    if decode_term(data) is not None and (is_sealed(data) or not is_commented(data)):
        return ""
    return ("malformed, or its seal does not fit: voteLeader=<id or nothing> and currTerm=<number> expected. "
            f"The next start goes by {TERM_TWIN_NAME}")


def later_term(one: TermVote, other: TermVote) -> TermVote | None:
    """Of two recorded states of one member the later one; None: they contradict each other."""
    if one.term == other.term and None not in (one.voted_for, other.voted_for) and one != other:
        return None
    return max(one, other, key=lambda found: (found.term, found.voted_for is not None))


def _failed(doing: str, error: OSError) -> DLedgerError:
    if is_no_room(error):
        return DLedgerError(ResponseCode.DISK_FULL, reason=f"{doing}: {error}")
    return StoreError(f"{doing}: {error}")


class TermFile:
    """
    Term and vote in C{directory}.

    @ivar warnings: sentences for the operator about the last L{load}; taken up, and nothing needs doing.
    """

    def __init__(self, disk: Disk, directory: str, *, member_ids: Collection[str] = ()) -> None:
        """@param member_ids: of the group, this member's included; empty: votes are not checked."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{TERM_FILE_NAME}"
        self._twin_path = f"{directory}/{TERM_TWIN_NAME}"
        self._member_ids = member_ids
        self._twin: TermTwin | None = None
        self._owed = b""
        self._recorded: TermVote | None = None  # of the twin, on stable storage
        self.warnings: list[str] = []

    # -- reading ---------------------------------------------------------------------------------

    def load(self, *, ledger_end_term: int = -1, has_ledger: bool = False) -> TermVote:
        """
        Term and vote; term 0 and no vote for a new member.

        @param ledger_end_term: term of the last entry. If the file's term is lower, the result is this term
            without a vote; no file is changed.
        @param has_ledger: a ledger of ours is here, so term and vote were recorded once.
        @raise DirectoryError: term and vote are not known.
        @raise StoreError: a file cannot be read.
        """
        self.warnings = []
        try:
            found = self._read()
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error
        if found is None:
            if has_ledger:
                raise DirectoryError(
                    f"{self._path} and {self._twin_path} are missing beside a ledger: {_WAY_OUT}"
                )
            found = TermVote()
        if found.term < ledger_end_term:
            return TermVote(ledger_end_term, None)
        return found

    def _read(self) -> TermVote | None:
        twin = self._read_twin()
        if not self._disk.exists(self._path):
            return self._read_left(twin)
        data = self._disk.read_file(self._path)
        # A member that left the group since may have got a vote that the twin confirms.
        known = decode_term(data)
        found = known if known is not None and known == twin else decode_term(data, self._member_ids)
        if found is None:
            if twin is None:
                raise DirectoryError(
                    f"{self._path} is malformed: {data[:60]!r}. It must hold the lines voteLeader=<id of a "
                    f"member, or nothing> and currTerm=<number>: {_WAY_OUT}"
                )
            self.warnings.append(f"{self._path} is malformed: {data[:60]!r}; {self._twin_path} is sound, and "
                                 f"replaces it with term {twin.term}, vote {twin.voted_for}")
            return twin
        return found if twin is None else self._agreed(found, twin)

    def _read_twin(self) -> TermVote | None:
        """The twin's content; None if it is absent, or unsound while C{currterm} is there."""
        if not self._disk.exists(self._twin_path):
            return None
        found = decode_term_twin(self._disk.read_file(self._twin_path))
        if found is None:
            trouble = f"{self._twin_path}: neither slot is sound"
            if not self._disk.exists(self._path):
                raise DirectoryError(f"{trouble}, and {self._path} is missing: {_WAY_OUT}")
            self.warnings.append(f"{trouble}; it is made again from {self._path}")
        return found

    def _read_left(self, twin: TermVote | None) -> TermVote | None:
        """The files that a crash of Java between unlink and rename leaves; None without any."""
        found = twin
        for suffix in (".bak", ".tmp"):
            if not self._disk.exists(self._path + suffix):
                continue
            left = decode_term(self._disk.read_file(self._path + suffix), self._member_ids)
            if left is not None:
                found = left if found is None else self._agreed(left, found)
            elif twin is None:
                raise DirectoryError(
                    f"{self._path} is missing and {self._path}{suffix} is malformed: {_WAY_OUT}"
                )
        return found

    def _agreed(self, one: TermVote, other: TermVote) -> TermVote:
        later = later_term(one, other)
        if later is None:
            raise DirectoryError(
                f"{self._path} and {self._twin_path} record different votes in term {one.term}: "
                f"{one.voted_for} and {other.voted_for}: {_WAY_OUT}"
            )
        return later

    # -- writing ---------------------------------------------------------------------------------

    def take_up(self, *, ledger_end_term: int, has_ledger: bool = False) -> TermVote:
        """
        Load term and vote at a member's start, as L{load}, and make them durable in both files.

        The last process of this member may have been killed between rename and fsync of the directory; a
        power failure could still undo the rename, although peers have heard this term.
        """
        found = self.load(ledger_end_term=ledger_end_term, has_ledger=has_ledger)
        if found == TermVote() and not self._disk.exists(self._path):
            self._open_twin(found)
            return found
        try:
            self.save(found.term, found.voted_for)
        except StoreError:
            raise
        except DLedgerError as error:
            if self._recorded != found:
                raise StoreError(f"{self._twin_path}: {error.facts.get('reason')}") from error
            self._owed = seal_term(found.term, found.voted_for)  # the twin has it, durably
        return found

    def _open_twin(self, now: TermVote) -> TermTwin:
        if self._twin is None:
            record = TermRecord(term=now.term, voted_for=now.voted_for or "")
            try:
                self._disk.makedirs(self._directory)
                try:
                    self._twin, kept = TermTwin.open(self._disk, self._twin_path, record)
                    if kept is not None:
                        self._recorded = TermVote(kept.term, kept.voted_for or None)
                except DirectoryError:  # unsound; load has decided by the other file
                    self._twin = TermTwin.create(self._disk, self._twin_path, record)
                # The name of a twin that a killed process made may be in the system's cache only.
                self._disk.sync_directory(self._directory)
            except OSError as error:
                raise _failed(f"{self._twin_path} cannot be made", error) from error
        return self._twin

    def save(self, term: int, voted_for: str | None) -> None:
        """
        Write term and vote durably.

        @raise DLedgerError: DISK_FULL; they may not be durable, and the member must not answer. It may try
            again.
        @raise StoreError: the write failed otherwise, and the member must not answer.
        """
        twin = self._open_twin(TermVote(term, voted_for))
        try:
            twin.write_durably(TermRecord(term=term, voted_for=voted_for or ""))
        except OSError as error:
            raise _failed(f"{self._twin_path} cannot be written", error) from error
        self._recorded = TermVote(term, voted_for)
        self._owed = seal_term(term, voted_for)
        self.check_point()

    def check_point(self) -> None:
        """
        Write C{currterm} if a save found no room for it; if there is still none, a later call tries again.

        @raise StoreError: the write failed for another reason.
        """
        if not self._owed:
            return
        try:
            self._disk.write_file(self._path, self._owed)
        except OSError as error:
            if not is_no_room(error):
                raise StoreError(f"{self._path} cannot be written: {error}") from error
        else:
            self._owed = b""

    @property
    def is_behind(self) -> bool:
        """Whether C{currterm} lacks the last save: Java must not open the directory now."""
        return bool(self._owed)

    def close(self) -> None:
        """Release the handle; a repeated call is harmless."""
        if self._twin is not None:
            self._twin.close()
            self._twin = None
