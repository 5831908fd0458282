# -*- test-case-name: tests.protocols.test_budgets -*-
"""
What an end that answers does about answers that are not read: the requests after them wait as bytes, and the
connection ends when it reads nothing for too long. And about requests that it cannot answer yet: they are
counted, and the further ones wait with the other end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocols.budgets import BEYOND_BYTES, Account
from protocols.outlet import Outlet
from protocols.put_off import PutOffReads
from protocols.turn import Turn
from protocols.wire.framing import FrameBuffer

#: Requests without an answer, and their bytes, that are not counted.
FEW, FEW_BYTES = 16, 16 * 1024


class Answering(Protocol):
    """What is needed here of an L{protocols.connection.AnsweringConnection}."""

    account: Account
    put_off: PutOffReads
    is_waited_for: bool
    is_congested: bool
    is_lost: bool
    spent_s: float
    unsent_bytes: int
    unanswered: int
    unanswered_bytes: int

    @property
    def is_urgent(self) -> bool:
        """Whether its reads are handled even when a turn has taken long."""

    @property
    def is_clogged(self) -> bool:
        """Whether it holds too many answers."""

    def abort(self, reason: str) -> None:
        """End it."""

    def unclogged(self) -> None:
        """It is no longer clogged, and an owner waits for that."""

    def regulate(self) -> None:
        """Read, or do not."""


def put_off_reads(
    connection: Answering, turn: Turn, handle: Callable[[bytes], None], buffer: FrameBuffer
) -> PutOffReads:
    """
    Its reads that wait for a later turn.

    @param handle: takes the next bytes, see L{PutOffReads}.
    @param buffer: has the bytes that are not cut yet.
    """
    return PutOffReads(
        turn, handle, cost_s=lambda: connection.spent_s, changed=lambda: put_off_changed(connection),
        uncut=lambda: buffer.uncut_bytes, must_wait=lambda: must_wait(connection),
    )


def goes_on(connection: Answering, turn: Turn) -> bool:
    """A piece of a read has been handled. @return: whether the next one is handled now; if not, it waits."""
    if connection.put_off.is_held:
        return False
    if connection.is_urgent or (turn.has_room() and not connection.is_clogged):
        return True
    connection.put_off.go_on()
    return False


def owes_much(connection: Answering) -> bool:
    """
    Whether it reads no further requests, because all connections have too many without an answer. To be asked
    while it has more than L{FEW}, or some are counted.
    """
    account, size = connection.account, connection.unanswered_bytes
    if connection.unanswered > FEW or size > FEW_BYTES:
        return not (account.may_ask(connection.unanswered, size) or connection.is_urgent)
    account.may_ask(0, 0)
    return False


def must_wait(connection: Answering) -> bool:
    """Whether its next bytes wait until it is no longer clogged."""
    if connection.is_urgent or not connection.is_clogged:
        return False
    connection.is_waited_for = True
    return True


def put_off_changed(connection: Answering) -> None:
    """Count its requests that wait; end it if they are too many, and it does not read answers."""
    if connection.is_lost:
        return
    refused = connection.account.count_waiting(connection.put_off.waiting_bytes)
    if refused and connection.is_clogged:
        connection.abort(refused)
    else:
        connection.regulate()


def may_answer(connection: Answering) -> bool:
    """
    Whether another large answer may be made now. If not, C{drained} of the owner follows, unless the budget
    of the process is the reason: then the owner asks again later.
    """
    if not connection.is_congested and connection.account.may_answer:
        return True
    connection.is_waited_for = True
    return False


def count_unsent(connection: Answering, outlet: Outlet) -> None:
    """Everything is written: count what is not sent yet, and go on with what waited for the other end."""
    account = connection.account
    account.settle(outlet.unsent_bytes(connection.unsent_bytes if connection.is_congested else 0))
    if account.held_bytes > BEYOND_BYTES:
        connection.abort(
            f"{account.held_bytes} bytes of answers were not read, at most {BEYOND_BYTES} are kept"
        )
    elif connection.is_waited_for and not connection.is_clogged:
        connection.is_waited_for = False
        connection.put_off.wake()
        connection.unclogged()


def sweep(connection: Answering, outlet: Outlet, now_s: float) -> None:
    """End the connection if it has not read its answers in time. Called regularly."""
    held_bytes = connection.account.held_bytes
    if connection.account.is_stalled(now_s, outlet.written_bytes - held_bytes):
        connection.abort(f"{held_bytes} bytes of answers were not read in time")
