# -*- test-case-name: tests.node.test_node -*-
"""The parts that all others of a member share: each is made with these, and with its own arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from dledger.core.driver import Driver
from dledger.core.replica import DLedgerCore
from dledger.core.state.effects import Report
from dledger.core.state.inputs import StoreFailed
from dledger.node.reporting.status import Counters
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import StoreError
from dledger.values.ledger.config import DLedgerConfig


class MemberReporter(Protocol):
    """How the parts of a member speak to its operator; the node."""

    def note(self, event: str, facts: Mapping[str, object]) -> None:
        """An event on the connections that another party can repeat."""

    def report(self, report: Report) -> None:
        """An event as the core reports it."""

    def broken(self, error: BaseException) -> None:
        """A bug of ours: the member stops."""


@attrs.frozen(kw_only=True)
class MemberInside:
    """
    @ivar seconds: the monotonic clock.
    @ivar wall_s: seconds since 1970.
    @ivar reporter: where events and bugs go.
    """

    config: DLedgerConfig
    store: FileStore
    core: DLedgerCore
    driver: Driver
    counters: Counters
    seconds: Callable[[], float]
    wall_s: Callable[[], float]
    reporter: MemberReporter

    @property
    def feed(self) -> Callable[..., None]:
        """Takes inputs for the core, in order."""
        return self.driver.feed

    @property
    def is_running(self) -> bool:
        """Whether the driver still takes inputs."""
        return not self.driver.is_stopped

    def with_store(self, call: Callable[[], None]) -> None:
        """Run C{call}, unless the member has stopped; a failure of the store is fed to the core."""
        if self.driver.is_stopped:
            return
        try:
            call()
        except (StoreError, OSError) as error:
            self.driver.feed(StoreFailed(reason=str(error)))

    def now_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return int(self.seconds() * 1000)
