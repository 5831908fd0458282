# -*- test-case-name: tests.node.test_embedding -*-
"""
A program in the process of a member that keeps its own data in the member's ledger: a broker.

The program appends and reads through L{dledger.node.node.Node}. It alone writes: appends of clients are
refused, as they would be foreign data to it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.storage.files.body_stamps import BodyStamps


def _nothing() -> None:
    """The program does not listen."""


@attrs.frozen(kw_only=True)
class Embedding:
    """
    @ivar stamps: writes positions into the bodies that the program appends.
    @ivar is_closed: it has accounts: without certificates and tokens, clients may read nothing at the port
        of the member.
    @ivar committed: called when more entries are known to be committed.
    @ivar role_changed: called when the member has another role, term or leader. Both are called in the middle
        of a step: they must only take note, and look at the node in a later turn.
    """

    stamps: BodyStamps = attrs.Factory(BodyStamps)
    is_closed: bool = False
    committed: Callable[[], None] = _nothing
    role_changed: Callable[[], None] = _nothing
