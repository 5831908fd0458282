# -*- test-case-name: tests.broker.test_parts -*-
"""The things that all parts of a broker share: each is made with these, and with its own arguments."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IReactorTime

from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.options.own_address import OwnAddress
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.store.store import MessageStore


@attrs.frozen(kw_only=True)
class BrokerInside:
    """
    @ivar clock: monotonic.
    @ivar wall_ms: milliseconds since 1970.
    @ivar own: its address for clients; known when its first port listens.
    """

    config: BrokerConfig
    store: MessageStore
    metadata: Metadata
    clock: IReactorTime
    wall_ms: Callable[[], int]
    own: OwnAddress
