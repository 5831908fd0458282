# -*- test-case-name: tests.client.test_top_level -*-
"""
dledger: a replicated commit log.

C{connect} opens the log of a group, for programs without a reactor; C{AsyncLog} for those with an asyncio
event loop, C{LogClient} for those with Twisted's reactor. The names of C{__all__} are imported when they are
first used, so that C{import dledger.core} does not load Twisted. Everything else is imported from its own
package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger.client.aio import AsyncLog
    from dledger.client.blocking import Log, connect
    from dledger.client.client import LogClient
    from dledger.client.connect_options import AppendLimits
    from dledger.client.errors import (
        AppendError,
        AppendFailed,
        CommandRefused,
        Conflict,
        Expired,
        LeaseHeld,
        LeaseLost,
        NotLeader,
        NotYet,
        OutOfSequence,
        Restored,
        SequenceForgotten,
        SequenceTaken,
        Timeout,
        UnknownChange,
        UnknownOutcome,
    )
    from dledger.client.values import Appended, AppendInterrupted, AppendSummary, Entry, MemberInfo
    from dledger.values.client_token import ClientToken
    from dledger.values.errors import DLedgerError
    from dledger.values.tls_files import TlsFiles
    from protocols.wire.codes import ResponseCode
    from protocols.wire.ledger.codes import Consistency

__all__ = (
    "AppendError",
    "AppendFailed",
    "AppendInterrupted",
    "AppendLimits",
    "AppendSummary",
    "Appended",
    "AsyncLog",
    "ClientToken",
    "CommandRefused",
    "Conflict",
    "Consistency",
    "DLedgerError",
    "Entry",
    "Expired",
    "LeaseHeld",
    "LeaseLost",
    "Log",
    "LogClient",
    "MemberInfo",
    "NotLeader",
    "NotYet",
    "OutOfSequence",
    "ResponseCode",
    "Restored",
    "SequenceForgotten",
    "SequenceTaken",
    "Timeout",
    "TlsFiles",
    "UnknownChange",
    "UnknownOutcome",
    "connect",
)

if TYPE_CHECKING:
    __version__: str

#: Module to its names in C{__all__}; the imports above are the same table for type checkers.
_HOMES = {
    "dledger.values.errors": ("DLedgerError",),
    "dledger.values.tls_files": ("TlsFiles",),
    "dledger.values.client_token": ("ClientToken",),
    "dledger.client.blocking": ("Log", "connect"),
    "dledger.client.aio": ("AsyncLog",),
    "dledger.client.client": ("LogClient",),
    "dledger.client.connect_options": ("AppendLimits",),
    "dledger.client.errors": (
        "AppendError", "AppendFailed", "CommandRefused", "Conflict", "Expired", "LeaseHeld", "LeaseLost",
        "NotLeader", "NotYet", "OutOfSequence", "Restored", "SequenceForgotten", "SequenceTaken", "Timeout",
        "UnknownChange", "UnknownOutcome",
    ),
    "dledger.client.values": ("AppendInterrupted", "AppendSummary", "Appended", "Entry", "MemberInfo"),
    "protocols.wire.codes": ("ResponseCode",),
    "protocols.wire.ledger.codes": ("Consistency",),
}


def _version() -> str:
    # To import this takes a twentieth of the start of a member.
    from pathlib import Path  # noqa: PLC0415

    from dledger.version import version_of  # noqa: PLC0415

    return version_of(Path(__file__).resolve().parent.parent)


if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name

    def __getattr__(name: str) -> object:
        """Import a name of C{__all__}, or find the version, when it is first used (PEP 562)."""
        if name == "__version__":
            return globals().setdefault(name, _version())
        for home, names in _HOMES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(home), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """The names of this module, those that are not imported yet included."""
        return sorted({*globals(), *__all__, "__version__"})
