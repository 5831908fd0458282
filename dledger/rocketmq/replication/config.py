# -*- test-case-name: tests.broker.ha.test_config -*-
"""
Options of replication, with RocketMQ's names in snake_case, and its defaults where it has the option.

This module knows values and their limits. It touches neither disk nor network.

Source: MessageStoreConfig.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs
from attrs.validators import deep_iterable, in_, instance_of

from dledger.values.option_fields import flag_option, number_option
from protocols.wire.rocketmq.ha import BODY_SIZE_MAX, TRANSFER_BATCH_SIZE

ASYNC_MASTER = "ASYNC_MASTER"
SYNC_MASTER = "SYNC_MASTER"
SLAVE = "SLAVE"

ASYNC_FLUSH = "ASYNC_FLUSH"
SYNC_FLUSH = "SYNC_FLUSH"

#: RocketMQ 4.9: any one slave must hold the message.
ANY_SLAVE = "any_slave"
#: RocketMQ 5.x: C{in_sync_replicas} replicas, the master included, must hold the message.
IN_SYNC_REPLICAS = "in_sync_replicas"


@attrs.frozen(kw_only=True)
class HAConfig:
    """
    Replication options of one broker. Sizes in bytes, times in milliseconds. Values that are fixed are no
    options: tests alone set them.

    @ivar broker_role: C{ASYNC_MASTER}, C{SYNC_MASTER} or C{SLAVE}.
    @ivar flush_disk_type: C{SYNC_FLUSH}: a put waits for stable storage, and a slave reports only bytes
        on stable storage. C{ASYNC_FLUSH}: the page cache counts.
    @ivar sync_rule: rule by which a SYNC_MASTER waits: C{any_slave} or C{in_sync_replicas}.
    @ivar in_sync_replicas: copies of a message, the master's included, before its put is answered.
    @ivar min_in_sync_replicas: with fewer replicas in sync a put is refused before it is stored.
    @ivar enable_auto_in_sync_replicas: wait for the replicas in sync only, at least for
        C{min_in_sync_replicas}.
    @ivar ha_max_gap_not_in_sync: a slave that lacks this many bytes is not in sync (haSlaveFallbehindMax).
    @ivar slave_timeout: longest wait of a put for slaves.
    @ivar sync_flush_timeout: longest wait of a put for the disk.
    @ivar pending_max: maximum number of waiting puts; more are refused before they are stored.
    @ivar ha_send_heartbeat_interval: time between two messages on an idle connection.
    @ivar ha_housekeeping_interval: a connection that is silent for this long ends.
    @ivar ha_transfer_batch_size: most bytes of the log in one message to a slave.
    @ivar ha_start_at_first_file: an empty slave is sent the whole log, not only its last file.
    @ivar ha_transfer_flushed_only: send slaves only bytes that are on the master's stable storage.
    @ivar ha_slaves_max: maximum number of slave connections.
    @ivar ha_slaves_per_host: number of slaves on one address that count as distinct.
    @ivar ha_allowed_hosts: hosts of slaves: addresses, names, networks such as C{10.0.0.0/8}, or C{*} for
        any; empty: only this host.
    @ivar ha_full_history: an empty slave asks for the log from its beginning.
    @ivar ha_verify_size: minimum that a slave compares with its master before it appends.
    @ivar ha_verify_size_at_start: the same for its first connection, after a possible power cut.
    @ivar ha_flush_interval: time between two flushes with C{ASYNC_FLUSH}.
    @ivar ha_reconnect_min, ha_reconnect_max: a slave waits for the first time before it connects again, and
        after each failure for twice as long, at most for the second.
    """

    broker_role: str = attrs.field(default=ASYNC_MASTER, validator=in_((ASYNC_MASTER, SYNC_MASTER, SLAVE)))
    flush_disk_type: str = attrs.field(default=ASYNC_FLUSH, validator=in_((ASYNC_FLUSH, SYNC_FLUSH)))
    sync_rule: str = attrs.field(default=ANY_SLAVE, validator=in_((ANY_SLAVE, IN_SYNC_REPLICAS)))
    in_sync_replicas: int = number_option(1, 1, 64)
    min_in_sync_replicas: int = number_option(1, 1, 64)
    enable_auto_in_sync_replicas: bool = flag_option(False)
    ha_max_gap_not_in_sync: int = number_option(256 * 1024 * 1024, 1)
    slave_timeout: int = number_option(3_000, 1, 3_600_000)
    sync_flush_timeout: int = number_option(5_000, 1, 3_600_000)
    pending_max: int = number_option(65_536, 1, 1_048_576, is_fixed=True)
    ha_send_heartbeat_interval: int = number_option(5_000, 10, 3_600_000, is_fixed=True)
    ha_housekeeping_interval: int = number_option(20_000, 20, 3_600_000, is_fixed=True)
    ha_transfer_batch_size: int = number_option(TRANSFER_BATCH_SIZE, 1, BODY_SIZE_MAX, is_fixed=True)
    ha_start_at_first_file: bool = flag_option(False)
    ha_transfer_flushed_only: bool = flag_option(False)
    ha_slaves_max: int = number_option(64, 1, 10_000)
    ha_slaves_per_host: int = number_option(1, 1, 10_000, is_fixed=True)
    ha_allowed_hosts: tuple[str, ...] = attrs.field(
        default=(), converter=tuple, validator=deep_iterable(instance_of(str))
    )
    ha_full_history: bool = flag_option(False)
    ha_verify_size: int = number_option(64 * 1024, 1, 1 << 40, is_fixed=True)
    ha_verify_size_at_start: int = number_option(16 * 1024 * 1024, 1, 1 << 40, is_fixed=True)
    ha_flush_interval: int = number_option(500, 10, 3_600_000, is_fixed=True)
    ha_reconnect_min: int = number_option(200, 1, 3_600_000, is_fixed=True)
    ha_reconnect_max: int = number_option(1_000, 1, 3_600_000, is_fixed=True)

    @min_in_sync_replicas.validator
    def _least_is_not_more(self, attribute: object, value: int) -> None:
        if value > self.in_sync_replicas:
            raise ValueError(
                f"min_in_sync_replicas={value} exceeds in_sync_replicas={self.in_sync_replicas}: "
                "no put could satisfy it"
            )

    @ha_housekeeping_interval.validator
    def _heartbeats_are_in_time(self, attribute: object, value: int) -> None:
        if value <= self.ha_send_heartbeat_interval:
            raise ValueError(
                f"ha_housekeeping_interval={value} must exceed ha_send_heartbeat_interval="
                f"{self.ha_send_heartbeat_interval}: an idle connection would be closed between two beats"
            )

    @ha_reconnect_max.validator
    def _waits_grow(self, attribute: object, value: int) -> None:
        if value < self.ha_reconnect_min:
            raise ValueError(
                f"ha_reconnect_max={value} is below ha_reconnect_min={self.ha_reconnect_min}"
            )

    @property
    def is_slave(self) -> bool:
        """Whether this broker follows another one."""
        return self.broker_role == SLAVE

    @property
    def waits_for_slaves(self) -> bool:
        """Whether a put may have to wait for slaves."""
        return self.broker_role == SYNC_MASTER

    @property
    def waits_for_disk(self) -> bool:
        """Whether a put, or a report, waits for stable storage."""
        return self.flush_disk_type == SYNC_FLUSH
