# -*- test-case-name: tests.broker.common.test_config -*-
"""Options of a broker: spellings, types, limits, and what is said of those that make no sense."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.options.config import BrokerConfig, broker_from_mapping, change_options
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.values.option_values import read_properties


def configured(**values: object) -> BrokerConfig:
    """A configuration from names and values."""
    return broker_from_mapping({"store_path_root_dir": "base", **values})


class SpellingTests(SynchronousTestCase):
    """One option has many spellings; each is understood, and two of them at once are not."""

    def test_names_are_distinct(self) -> None:
        """No option of one part hides that of another."""
        names = [name for cls in (BrokerConfig, StoreConfig, HAConfig) for name in attrs.fields_dict(cls)]
        self.assertEqual(len(names), len(set(names)))

    def test_a_file_of_rocketmq(self) -> None:
        """What a broker's file usually holds, as text."""
        config = broker_from_mapping(read_properties(
            "# a broker\nbrokerClusterName = C1\nbrokerName=broker-a\nbrokerId=0\ndeleteWhen=04\n"
            "fileReservedTime=48\nbrokerRole=SYNC_MASTER\nflushDiskType=SYNC_FLUSH\nlistenPort=20911\n"
            "namesrvAddr=a:9876;b:9876\nbrokerIP1=10.0.0.1\nautoCreateTopicEnable=false\n"
            "storePathRootDir=base\nmapedFileSizeCommitLog=1048576\nhaSlaveFallbehindMax=1000\n"
            "diskMaxUsedSpaceRatio=88\nsendMessageThreadPoolNums=128\ninSyncReplicas=2\n! end\n"
        ))
        self.assertEqual((config.broker_cluster_name, config.broker_name, config.broker_id),
                         ("C1", "broker-a", 0))
        self.assertEqual((config.ha.broker_role, config.ha.flush_disk_type), ("SYNC_MASTER", "SYNC_FLUSH"))
        self.assertEqual((config.listen_port, config.ha_port), (20911, 20912))
        self.assertEqual(config.name_servers, ("a:9876", "b:9876"))
        self.assertEqual(config.broker_ip1, "10.0.0.1")
        self.assertFalse(config.auto_create_topic_enable)
        self.assertEqual(config.store.mapped_file_size_commit_log, 1048576)
        self.assertEqual((config.store.file_reserved_time_h, config.store.delete_when), (48, "04"))
        self.assertEqual((config.ha.ha_max_gap_not_in_sync, config.ha.in_sync_replicas), (1000, 2))
        self.assertEqual(config.ignored, ("sendMessageThreadPoolNums",))

    def test_a_fixed_value_is_ignored(self) -> None:
        """Under any name; the log names it."""
        config = configured(haSendHeartbeatInterval="1", ha_verify_size=1, registerBrokerTimeoutMills="9")
        self.assertEqual(
            config.ignored, ("haSendHeartbeatInterval", "ha_verify_size", "registerBrokerTimeoutMills")
        )
        self.assertEqual((config.ha, config.store), (HAConfig(), configured().store))
        error = self.assertRaises(ValueError, change_options, config, {"haSendHeartbeatInterval": "1"})
        self.assertIn("has no meaning here", str(error))

    def test_roles_and_flushes(self) -> None:
        """Our words and RocketMQ's."""
        for role in ("slave", "SLAVE"):
            self.assertTrue(configured(role=role).role.is_slave)
        self.assertEqual(configured(role="sync-master").ha.broker_role, "SYNC_MASTER")
        self.assertTrue(configured(flush="sync").ha.waits_for_disk)

    def test_twice(self) -> None:
        """Two spellings of one option."""
        error = self.assertRaises(ValueError, configured, brokerName="a", broker_name="b")
        self.assertEqual(str(error), "option 'broker_name' is given twice, once as 'broker_name'")

    def test_unknown(self) -> None:
        """The nearest is named."""
        error = self.assertRaises(ValueError, configured, brokerClusterNam="a")
        self.assertEqual(
            str(error), "unknown option 'brokerClusterNam'; did you mean 'broker_cluster_name'?"
        )

    def test_no_store(self) -> None:
        """There is no default for where messages go."""
        error = self.assertRaises(ValueError, broker_from_mapping, {})
        self.assertIn("store_path_root_dir is missing", str(error))

    def test_parts_are_not_options(self) -> None:
        """What holds the options of a part is none itself."""
        for name in ("ha", "ignored"):
            self.assertRaises(ValueError, configured, **{name: "x"})


class ValueTests(SynchronousTestCase):
    """A value outside its limits is refused with what would be right."""

    def refused(self, words: str, **values: object) -> None:
        """A validator's sentence."""
        error = self.assertRaises((ValueError, TypeError), configured, **values)
        self.assertIn(words, str(error.args[0]))

    def test_refused(self) -> None:
        """One of each kind."""
        self.refused("write a whole number", listen_port="many")
        self.refused("write true or false", autoCreateTopicEnable="yes")
        self.refused("for a slave say broker_role=SLAVE", broker_id=2)
        self.refused("a slave has one above 0", role="slave", broker_id=0)
        self.refused("follows no master", ha_master_address="a:1")
        self.refused("a slave has one master", role="slave", ha_master_address="a:1;b:1")
        for address in ("a:1;", " a:1;", ";"):
            self.refused("one host:port", role="slave", ha_master_address=address)
        self.refused("is not an address", namesrv_addr="localhost")
        self.refused("is not an address", namesrv_addr="localhost:70000")
        self.refused("letters, digits", broker_name="a b")
        self.refused("write an address", brokerIP1="not a host")
        self.refused("listen_port", listen_port=65535)

    def test_properties_refused(self) -> None:
        """A line that is none, and one that is there twice."""
        self.assertIn("line 2: 'b' is not", str(self.assertRaises(ValueError, read_properties, "a=1\nb\n")))
        self.assertIn("line 3: a is given", str(self.assertRaises(ValueError, read_properties, "a=1\n\na=2")))


class MasterTests(SynchronousTestCase):
    """Whom a slave follows, and where."""

    def test_slave_has_an_id(self) -> None:
        """1, unless set otherwise."""
        self.assertEqual(configured(role="slave").broker_id, 1)
        self.assertEqual(configured(role="slave", brokerId="3").broker_id, 3)

    def test_remoting_address(self) -> None:
        """Given, or one port below replication, or unknown."""
        self.assertIsNone(configured(role="slave").master_remoting_address)
        self.assertEqual(
            configured(role="slave", haMasterAddress="m:10912").master_remoting_address, "m:10911"
        )
        config = configured(role="slave", haMasterAddress="m:1", masterAddress="m:7")
        self.assertEqual(config.master_remoting_address, "m:7")

    def test_ha_port(self) -> None:
        """Beside the listen port, unless set otherwise; any beside any."""
        self.assertEqual(configured().ha_port, 10912)
        self.assertEqual(configured(ha_listen_port=5).ha_port, 5)
        self.assertEqual(configured(listen_port=0).ha_port, 0)
