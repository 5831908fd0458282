# -*- test-case-name: tests.broker.common.test_role -*-
"""
The role of a broker now: fixed by its options, or, on a raft log, that of its member.

Source: BrokerConfig.brokerId and MessageStoreConfig.brokerRole (4.9.8).
"""

from __future__ import annotations

import attrs

#: The id of every master.
MASTER_ID = 0


@attrs.define(kw_only=True)
class BrokerRole:
    """
    @ivar name: SYNC_MASTER, ASYNC_MASTER or SLAVE.
    @ivar broker_id: L{MASTER_ID} for a master, above for a slave.
    @ivar changes: how often it has changed since the start.
    """

    name: str
    broker_id: int
    changes: int = 0

    @property
    def is_slave(self) -> bool:
        """Whether it takes no messages."""
        return self.name == "SLAVE"

    def become(self, name: str, broker_id: int) -> None:
        """Take another role."""
        self.name = name
        self.broker_id = broker_id
        self.changes += 1
