# -*- test-case-name: tests.storage.test_body_stamps -*-
"""
What a program writes into its own bodies when the ledger has given them positions.

A RocketMQ message contains its offset in the log, which is known only when the leader writes the entry. The
checksums of the entry cover the offset, so it is written before they are computed.

Source: the append hook of DLedgerServer.java (0.3.1.2).
"""

from __future__ import annotations

from collections.abc import Callable

#: From a body and the stream offset of its record to the body to write, of the same length.
Stamp = Callable[[bytes, int], bytes]


class BodyStamps:
    """
    Stamps nothing; a program derives from it.

    @ivar term_start_body: body of the entry that a leader writes when its term begins.
    """

    term_start_body = b""

    def begin(self) -> Stamp | None:
        """
        A write of bodies begins. Stamps of an earlier write that was refused count for nothing.

        @return: called once for each body, in order; None: the bodies are written as they are.
        """
        return None

    def written(self) -> None:
        """The entries are written: readable at this member, neither flushed nor committed."""
