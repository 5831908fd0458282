# -*- test-case-name: tests.storage.test_term_file -*-
"""
C{currterm}: the term and the vote of a member, durable before the answer that depends on them.

The content equals Java's byte for byte. Unlike in Java, the file is replaced by rename after fsync, so
that it always exists and is whole. If a crash of Java left no file, its C{.tmp} and C{.bak} are read.

Source: MemberState.persistTerm and IOUtils.string2File (0.3.1.2); differs: docs/divergence.md W4.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.errors import DirectoryError, StoreError
from dledger.storage.properties import java_long, parse_properties

TERM_FILE_NAME = "currterm"


@attrs.frozen
class TermVote:
    """A term and the member that got the vote in it; None without a vote."""

    term: int = 0
    voted_for: str | None = None


def encode_term(term: int, voted_for: str | None) -> bytes:
    """The bytes of the file."""
    return f"voteLeader={voted_for or ''}\ncurrTerm={term}\n".encode()


def decode_term(data: bytes) -> TermVote | None:
    """Content of a term file; None if it is malformed."""
    found = parse_properties(data)
    term = java_long(found.get("currTerm"))
    if term is None or term < 0:
        return None
    return TermVote(term, found.get("voteLeader") or None)


class TermFile:
    """The term file in C{directory}."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{TERM_FILE_NAME}"

    def load(self, *, ledger_end_term: int = -1) -> TermVote:
        """
        Term and vote; term 0 and no vote for a new member.

        @param ledger_end_term: term of the last entry. If the file's term is lower, the result is this term
            without a vote; the file is not changed.
        @raise DirectoryError: the file is malformed.
        @raise StoreError: the file cannot be read.
        """
        try:
            found = self._read()
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error
        if found.term < ledger_end_term:
            return TermVote(ledger_end_term, None)
        return found

    def take_up(self, *, ledger_end_term: int) -> TermVote:
        """
        Load term and vote at a member's start, as L{load}, and make them durable.

        The last process of this member may have been killed between rename and fsync of the directory; a
        power failure could still undo the rename, although peers have heard this term.
        """
        found = self.load(ledger_end_term=ledger_end_term)
        if found != TermVote():
            self.save(found.term, found.voted_for)
        return found

    def _read(self) -> TermVote:
        if self._disk.exists(self._path):
            data = self._disk.read_file(self._path)
            found = decode_term(data)
            if found is None:
                raise DirectoryError(
                    f"{self._path} is malformed: {data[:60]!r}. It must hold the lines "
                    "voteLeader=<id or nothing> and currTerm=<number>. The member's vote is lost: write "
                    "voteLeader= (empty) and a currTerm above that of every member, then start again"
                )
            return found
        left = []
        for suffix in (".bak", ".tmp"):
            if self._disk.exists(self._path + suffix):
                found = decode_term(self._disk.read_file(self._path + suffix))
                if found is not None:
                    left.append(found)
        # Of equal terms the one with a vote counts: a vote must never be forgotten.
        return max(left, key=lambda one: (one.term, one.voted_for is not None), default=TermVote())

    def save(self, term: int, voted_for: str | None) -> None:
        """
        Write term and vote durably.

        @raise StoreError: the write failed, and the member must not answer.
        """
        try:
            self._disk.makedirs(self._directory)
            self._disk.write_file(self._path, encode_term(term, voted_for))
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error
