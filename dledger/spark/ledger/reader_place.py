# -*- test-case-name: tests.spark.test_reader_place -*-
"""
The place of a stream, kept by the group as that of a named reader (docs/readers.md): expiry deletes nothing
that the stream has not read, and C{dledger readers} shows how far it is.

Rule: a place that could not be kept stops nobody. The next batch moves it further.
"""

from __future__ import annotations

from dledger.spark.basics.log import ReadError
from dledger.spark.basics.options import ScanOptions
from dledger.spark.ledger.leader_link import LeaderLink
from dledger.spark.ledger.member_connection import Trouble
from protocols.wire.codes import ResponseCode


class ReaderPlace:
    """The place of one stream."""

    def __init__(self, options: ScanOptions) -> None:
        """@raise OptionError: C{bootstrap} makes no sense."""
        self._name = options.reader
        self._link = LeaderLink(options)
        self._index = -1

    def move(self, index: int) -> str:
        """
        All entries before an index are done; also back, when a query begins again.

        @return: why it was not kept; empty if it was.
        """
        if index == self._index:
            return ""
        try:
            leader = self._link.connected()
            answer = leader.move_reader(self._name, index)
        except (Trouble, ReadError) as error:
            self._link.leave()
            return str(error)
        if answer.code is not ResponseCode.SUCCESS:
            self._link.leave()
            return ", ".join(filter(None, (f"{leader.member_id} refuses: {answer.code.name}", answer.reason)))
        self._index = index
        return ""

    def close(self) -> None:
        """Release the connection. The group keeps the place."""
        self._link.leave()
