# -*- test-case-name: tests.protocols.test_costly_reads -*-
"""Requests that are not strict JSON: the tolerant parser is slow, so one read may have few of them."""

from __future__ import annotations

from protocols.wire.errors import LooseError
from protocols.wire.remoting import RemotingCommand, decode_command

#: Headers and bodies of one read that may be loose JSON.
LOOSE_PER_READ = 4


class LooseRequests:
    """
    Counts them for one connection.

    @ivar left: how many the present read may have; its owner sets it to L{LOOSE_PER_READ} after each.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = LOOSE_PER_READ

    def command(self, frame: bytes) -> RemotingCommand:
        """
        Decode a remoting frame.

        @raise WireError: malformed, or one loose header too many in this read.
        """
        try:
            return decode_command(frame, tolerant_bytes_max=0)
        except LooseError:
            self.use()
            return decode_command(frame)

    def use(self) -> None:
        """@raise LooseError: too many in this read."""
        if not self.left:
            raise LooseError(f"more than {LOOSE_PER_READ} requests of one read are not strict JSON")
        self.left -= 1
