# -*- test-case-name: tests.storage.test_term_file -*-
"""
C{currterm}: the term and the vote of a member, durable before the answer that depends on them.

Content as Java's, byte for byte. Unlike Java, the file is replaced by rename after fsync, so that
it is always there and whole; and where Java's crash left none, its C{.tmp} and C{.bak} are read.

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
    """A term and who was voted for in it; None if nobody was."""

    term: int = 0
    voted_for: str | None = None


def encode_term(term: int, voted_for: str | None) -> bytes:
    """The bytes of the file."""
    return f"voteLeader={voted_for or ''}\ncurrTerm={term}\n".encode()


def decode_term(data: bytes) -> TermVote | None:
    """What a file says; None if it makes no sense."""
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

        @param ledger_end_term: the term is at least that of the last entry, whatever the file says.
        @raise DirectoryError: the file makes no sense.
        @raise StoreError: it cannot be read.
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
        What a member begins its life with: as L{load}, and durable.

        A predecessor that was killed between its rename and its fsync of the directory left what
        we see, but a power failure may still take it back; and we are about to speak in this term.
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
                    f"{self._path} holds {data[:60]!r}, not a line voteLeader=<id or nothing> and a line "
                    "currTerm=<number>: this member may have voted in a term that it does not remember. "
                    "Write these two lines with a term above that of every member, no vote, and start again"
                )
            return found
        left = []
        for suffix in (".bak", ".tmp"):
            if self._disk.exists(self._path + suffix):
                found = decode_term(self._disk.read_file(self._path + suffix))
                if found is not None:
                    left.append(found)
        # Of equal terms the one with a vote counts: to forget a vote is what must not happen.
        return max(left, key=lambda one: (one.term, one.voted_for is not None), default=TermVote())

    def save(self, term: int, voted_for: str | None) -> None:
        """
        Durable when it returns.

        @raise StoreError: it is not, and the member must not answer.
        """
        try:
            self._disk.makedirs(self._directory)
            self._disk.write_file(self._path, encode_term(term, voted_for))
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error
