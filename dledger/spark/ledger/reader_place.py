# -*- test-case-name: tests.spark.test_reader_place -*-
"""
The place of a stream, kept by the group as that of a named reader (docs/readers.md): expiry deletes nothing
that the stream has not read, and C{dledger readers} shows how far it is. The stream reads by itself; of the
reader it takes the lease, and commits.

Rule 1: a place that could not be kept stops nobody. The next batch moves it further.
Rule 2: a reader does not go back. A query that begins again, from an earlier checkpoint, leaves the place
as it is, and says so.
Rule 3: a lease that is over still commits, until another process has taken it. So it is short, and is not
renewed: a query that begins again gets it at once.
"""

from __future__ import annotations

from secrets import token_hex

from dledger.spark.formats.log import ReadError
from dledger.spark.formats.options import ScanOptions
from dledger.spark.ledger.leader_link import LeaderLink
from dledger.spark.ledger.member_connection import Trouble
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ReaderResponse
from protocols.wire.ledger.readers import LEASE_MS_MIN


class _Refused(Exception):
    """The leader has refused, for this reason. @ivar code: its code."""

    def __init__(self, code: ResponseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ReaderPlace:
    """
    The place of one stream.

    Invariant: C{_token} is that of the lease that was taken last, -1 without one; all before C{_index} is
    done.
    """

    def __init__(self, options: ScanOptions) -> None:
        """@raise OptionError: C{bootstrap} makes no sense."""
        self._name = options.reader
        self._link = LeaderLink(options)
        self._holder = f"spark:{token_hex(8)}"
        self._secret = token_hex(16)
        self._token = -1
        self._index = -1

    def keep(self, index: int) -> str:
        """
        All entries before an index are done.

        @return: why the group does not keep that; empty if it does.
        """
        if self._token >= 0 and index == self._index:
            return ""
        try:
            if self._token < 0:
                self._take(index)
            try:
                return self._commit(index)
            except _Refused as refused:
                if refused.code is not ResponseCode.LEASE_LOST:
                    raise
            self._take(index)  # (It was moved, or another process had it for a while.)
            return self._commit(index)
        except (Trouble, ReadError, _Refused) as error:
            self._link.leave()
            return str(error)

    def _take(self, index: int) -> None:
        """Get the lease of the whole log; a reader that the group does not know begins at C{index}."""
        self._token = -1
        answer = self._asked("take", holder=self._holder, lease_ms=LEASE_MS_MIN, index=index)
        self._token = answer.token
        self._index = answer.next_index

    def _commit(self, index: int) -> str:
        if index > self._index:
            self._asked("commit", token=self._token, index=index - 1)
            self._index = index
        elif index < self._index:
            return ("the group has it at a later entry, and a reader does not go back by itself (dledger "
                    f"readers move {self._name} does)")
        return ""

    def _asked(self, does: str, **fields: int | str) -> ReaderResponse:
        """@raise Trouble: there is no answer. @raise _Refused: it is not SUCCESS."""
        leader = self._link.connected()
        answer = leader.ask_reader(does, self._name, secret=self._secret, **fields)
        if answer.code is not ResponseCode.SUCCESS:
            reported = (f"{leader.member_id} refuses: {answer.code.name}", answer.reason)
            raise _Refused(answer.code, ", ".join(filter(None, reported)))
        return answer

    def close(self) -> None:
        """Release the connection. The group keeps the place; the lease ends by itself."""
        self._link.leave()
