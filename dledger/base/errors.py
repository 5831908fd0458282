# -*- test-case-name: tests.base.test_errors -*-
"""
The one expected failure of this system: a refusal with a code and facts.

Three kinds of failure exist and each has one reaction. L{DLedgerError}: an expected refusal, becomes
a response code. L{protocols.wire.errors.WireError}: the peer broke the format, drop the connection.
C{AssertionError}: we are wrong, stop the member. Nothing else crosses a layer.
"""

from __future__ import annotations

from protocols.wire.ledger.codes import ResponseCode


class DLedgerError(Exception):
    """
    An expected refusal.

    @ivar code: the response code that the other side is given.
    @ivar facts: named values that explain it (C{leader_id}, C{index}, C{reason}, ...).
    """

    def __init__(self, code: ResponseCode, **facts: object) -> None:
        super().__init__(code, facts)
        self.code = code
        self.facts = facts

    def __str__(self) -> str:
        """Code, number, and the facts in the order given."""
        facts = ", ".join(f"{name}={value!r}" for name, value in self.facts.items())
        return f"{self.code.name} ({int(self.code)})" + (f": {facts}" if facts else "")


class StoreError(DLedgerError):
    """
    The store cannot go on: an I/O error, a damaged record, a failed fsync.

    Fatal for the member: it stops, and recovers from its files when it is started again.
    """

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(ResponseCode.DISK_ERROR, reason=reason, **facts)


class DirectoryError(StoreError):
    """
    A data directory that must not be opened as it is (locked, foreign files, wrong sizes).

    Raised before anything in it was touched. The message says what was found and what to do.
    """

    def __str__(self) -> str:
        """The reason alone: it is a sentence for the operator."""
        return str(self.facts["reason"])
