# -*- test-case-name: tests.broker.ha.test_config -*-
"""Options of replication: RocketMQ's defaults, and refusals that say what is allowed."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.config import HAConfig


class ConfigTests(SynchronousTestCase):
    """Values and limits."""

    def test_defaults_are_those_of_rocketmq(self) -> None:
        """As MessageStoreConfig has them."""
        config = HAConfig()
        self.assertEqual(
            (config.broker_role, config.flush_disk_type, config.ha_send_heartbeat_interval,
             config.ha_housekeeping_interval, config.ha_transfer_batch_size, config.slave_timeout,
             config.sync_flush_timeout, config.ha_max_gap_not_in_sync, config.in_sync_replicas,
             config.min_in_sync_replicas, config.enable_auto_in_sync_replicas),
            ("ASYNC_MASTER", "ASYNC_FLUSH", 5000, 20000, 32768, 3000, 5000, 268435456, 1, 1, False),
        )

    def test_each_role_waits_as_it_should(self) -> None:
        """What each of them waits for."""
        waits = {role: HAConfig(broker_role=role) for role in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")}
        self.assertEqual([config.waits_for_slaves for config in waits.values()], [False, True, False])
        self.assertEqual([config.is_slave for config in waits.values()], [False, False, True])
        self.assertTrue(HAConfig(flush_disk_type="SYNC_FLUSH").waits_for_disk)

    def test_wrong_values_are_refused(self) -> None:
        """The sentence names the option, the value and the limit."""
        for options, said in (
            ({"broker_role": "MASTER"}, "SYNC_MASTER"),
            ({"flush_disk_type": "sync"}, "SYNC_FLUSH"),
            ({"sync_rule": "4.9"}, "any_slave"),
            ({"in_sync_replicas": 0}, "'in_sync_replicas' must be >= 1"),
            ({"in_sync_replicas": 2, "min_in_sync_replicas": 3},
             "min_in_sync_replicas=3 exceeds in_sync_replicas=2"),
            ({"ha_transfer_batch_size": 4 * 1024 * 1024}, "must be <= 4194292"),
            ({"ha_housekeeping_interval": 5000}, "must exceed ha_send_heartbeat_interval=5000"),
            ({"ha_reconnect_min": 300, "ha_reconnect_max": 299}, "ha_reconnect_max=299 is below"),
            ({"slave_timeout": "3s"}, "slave_timeout"),
            ({"ha_allowed_hosts": (1,)}, "ha_allowed_hosts"),
        ):
            error = self.assertRaises((ValueError, TypeError), HAConfig, **options)
            self.assertIn(said, str(error))
