# -*- test-case-name: tests.node.test_embedding -*-
"""
A program in the process of a member that keeps its own data in the member's ledger: a broker.

The program appends and reads through L{dledger.node.node.Node}. It alone writes: appends of clients are
refused, as they would be foreign data to it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.storage.files.records import BodyStamps
from protocols.wire.ledger.bounds import INDEX_MAX


def _nothing() -> None:
    """The program does not listen."""


def _no_entry() -> int:
    """The program needs none of the entries."""
    return INDEX_MAX


@attrs.frozen(kw_only=True)
class Embedding:
    """
    @ivar stamps: writes positions into the bodies that the program appends.
    @ivar is_closed: it has accounts: without certificates and tokens, clients may read nothing at the port
        of the member.
    @ivar needed_index: the program still needs the entries after this index: expiry leaves them.
    @ivar committed: called when more entries are known to be committed.
    @ivar role_changed: called when the member has another role, term or leader. These two are called in the
        middle of a step: they must only take note, and look at the node in a later turn.
    """

    stamps: BodyStamps = attrs.Factory(BodyStamps)
    is_closed: bool = False
    needed_index: Callable[[], int] = _no_entry
    committed: Callable[[], None] = _nothing
    role_changed: Callable[[], None] = _nothing
