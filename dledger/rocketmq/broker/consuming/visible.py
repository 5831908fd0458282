# -*- test-case-name: tests.broker.test_gate -*-
"""
Which records of a topic the sender of a request may see: with access control, not every member of a group has
the right to each topic whose messages are among the group's retries and dead letters.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

#: Whether somebody may see a record.
Visible = Callable[[bytes], bool]
#: From a request and the topic that it asks for to what its sender may see; None: all records.
VisibleTo = Callable[[CommandConnection, RemotingCommand, str], Visible | None]


def all_visible(connection: CommandConnection, request: RemotingCommand, topic: str) -> Visible | None:
    """Without access control everybody sees all records."""
    return None
