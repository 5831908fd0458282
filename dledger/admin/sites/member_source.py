# -*- test-case-name: tests.admin.test_resource -*-
"""The part of a member that its pages need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred

from dledger.base.tls.securing import Dialling
from dledger.node.reporting.reports import SeenEvent
from dledger.node.reporting.status import NodeStatus
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.own.time_entries import TimeReset


class TransferAnswer(Protocol):
    """The part of the answer to a hand-over that this module needs."""

    @property
    def code(self) -> ResponseCode:
        """SUCCESS, or why not."""

    @property
    def leader_id(self) -> str | None:
        """The leader that the member knows."""

    @property
    def term(self) -> int:
        """Its term."""


class SkipAnswer(Protocol):
    """The part of the answer to an order to skip that this module needs."""

    @property
    def code(self) -> ResponseCode:
        """SUCCESS, or why not."""

    @property
    def leader_id(self) -> str | None:
        """The leader that the member knows."""

    @property
    def reason(self) -> str:
        """Why not."""

    @property
    def index(self) -> int:
        """Of the order in the log."""


class StatusSource(Protocol):
    """
    A part of L{dledger.node.node.Node}.

    @ivar dialling: with which it connects to other members; None without TLS.
    """

    dialling: Dialling | None

    def status(self) -> NodeStatus:
        """The current status."""

    @property
    def has_times(self) -> bool:
        ...

    @property
    def time_resets(self) -> Sequence[TimeReset]:
        ...

    def read_committed(self, first_index: int, *, max_bytes: int) -> EntryBatch | None:
        ...

    def transfer(self, transferee_id: str) -> Deferred[TransferAnswer]:
        """Hand leadership over. @return: fires with the answer to such a request, with any code."""

    def skip(self, index: int) -> Deferred[SkipAnswer]:
        """Order to skip an entry. @return: fires with the answer to such a request, with any code."""

    def ask_snapshot(self) -> str:
        """Let the state machine take a snapshot. @return: why it takes none; empty if it does."""

    @property
    def events(self) -> Callable[[], tuple[SeenEvent, ...]]:
        """Returns the last events, oldest first."""
