# -*- test-case-name: tests.broker.store.test_store_config -*-
"""Options of a store are refused at once, with a sentence that says what is allowed."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.records.store_config import StoreConfig, parse_delay_levels
from tests.broker.support import config_of


class StoreConfigTests(SynchronousTestCase):
    """Names and defaults are RocketMQ's."""

    def test_defaults_are_those_of_rocketmq(self) -> None:
        """As in MessageStoreConfig.java."""
        config = StoreConfig(store_path_root_dir="s")
        self.assertEqual(config.mapped_file_size_commit_log, 1073741824)
        self.assertEqual(config.mapped_file_size_consume_queue, 6_000_000)
        self.assertEqual(config.max_message_size, 4194304)
        rules = config.expiry_rules
        self.assertEqual((rules.reserved_hours, rules.delete_hours, rules.full_ratio), (72, {4}, 0.9))
        self.assertEqual((config.commit_log_path, config.consume_queue_path, config.config_path),
                         ("s/commitlog", "s/consumequeue", "s/config"))
        self.assertEqual(len(config.delay_levels_ms), 18)
        self.assertEqual((config.delay_levels_ms[0], config.delay_levels_ms[4], config.delay_levels_ms[17]),
                         (1_000, 60_000, 7_200_000))

    def test_wrong_values_are_refused(self) -> None:
        """Each names the option, its value and the allowed ones."""
        for options, part in (
            ({"mapped_file_size_consume_queue": 30}, "20 and 40 are"),
            ({"mapped_file_size_commit_log": 100}, "mapped_file_size_commit_log"),
            ({"disk_max_used_space_ratio": 99}, "disk_max_used_space_ratio"),
            ({"message_delay_level": "1s 5x"}, "'5x' is not a delay"),
            ({"delete_when": "04;25"}, "'25' is not an hour"),
            ({"store_path_root_dir": ""}, "store_path_root_dir is empty"),
        ):
            with self.assertRaises(ValueError) as caught:
                config_of(**{"root": "base", **options} if "store_path_root_dir" not in options else
                          {"root": ""})  # type: ignore[arg-type]
            self.assertIn(part, str(caught.exception))

    def test_delays_have_their_units(self) -> None:
        """Seconds, minutes, hours, days."""
        self.assertEqual(parse_delay_levels("2s 3m 1h 1d"), (2_000, 180_000, 3_600_000, 86_400_000))
