# -*- test-case-name: tests.base.test_errors -*-
"""
The only expected failure of this system: a refusal with a code and facts.

There are three kinds of failure, each with one reaction. L{DLedgerError}: an expected refusal becomes
a response code. L{protocols.wire.errors.WireError}: the peer broke the format, its connection is dropped.
C{AssertionError}: the program has a bug, the member stops. No other exception crosses a layer.
"""

from __future__ import annotations

from protocols.wire.code_help import cause_of
from protocols.wire.codes import ResponseCode


class DLedgerError(Exception):
    """
    An expected refusal.

    @ivar code: response code for the other side.
    @ivar facts: named values that explain it (C{leader_id}, C{index}, C{reason}, ...).
    """

    def __init__(self, code: ResponseCode, **facts: object) -> None:
        super().__init__(code, facts)
        self.code = code
        self.facts = facts

    def __str__(self) -> str:
        """Code, number, the cause unless a fact C{reason} says it, and the facts in the order given."""
        parts = [] if self.facts.get("reason") else [cause_of(self.code)]
        parts.extend(f"{name}={value!r}" for name, value in self.facts.items())
        return f"{self.code.name} ({int(self.code)}): {', '.join(parts)}"


class StoreError(DLedgerError):
    """
    The store cannot continue: an I/O error, a damaged record, a failed fsync.

    Fatal for the member: it stops, and recovers from its files at the next start.
    """

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(ResponseCode.DISK_ERROR, reason=reason, **facts)


class DamagedEntryError(DLedgerError):
    """
    An entry whose record is damaged: it lies in a hole of the ledger until a peer has given it back.

    Not fatal: everything else of the store can be read and written.
    """

    def __init__(self, index: int, reason: str, **facts: object) -> None:
        super().__init__(ResponseCode.DISK_ERROR, index=index, reason=reason, **facts)
        self.index = index


class DirectoryError(StoreError):
    """
    A data directory that must not be opened in its present state (locked, foreign files, wrong sizes).

    Raised before any file in it is changed. The message names the finding and the remedy.
    """

    def __str__(self) -> str:
        """Only the reason: it is a sentence for the operator."""
        return str(self.facts["reason"])
