# -*- test-case-name: tests.base.test_forks -*-
"""A forked process has a copy of this one's memory, but not its threads, and shares its connections."""

from __future__ import annotations

import os

import attrs

from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode


@attrs.frozen
class OpenedHere:
    """Remembers the process in which a client was opened."""

    process_id: int = attrs.Factory(os.getpid)

    @property
    def is_here(self) -> bool:
        """Whether this process is the one."""
        return os.getpid() == self.process_id

    def check(self) -> None:
        """@raise DLedgerError: this process was forked from that one."""
        if not self.is_here:
            raise DLedgerError(
                ResponseCode.UNSUPPORTED,
                reason=f"opened in process {self.process_id}, used in process {os.getpid()}, which was "
                "forked from it: threads and connections are not copied. Open it again in this process, "
                "after the fork",
            )
