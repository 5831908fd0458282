# -*- test-case-name: tests.broker.common.test_rocketmq_options -*-
"""Ordinary files of RocketMQ's brokers."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.options.config import broker_from_mapping
from dledger.rocketmq.broker.options.rocketmq_options import PROMISES, is_rocketmq_option
from dledger.values.option_values import read_properties

#: What real files set to what we do anyway, or to what does not matter here.
ORDINARY = """
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
enablePropertyFilter=false
aclEnable=false
enableControllerMode=false
enableDLegerCommitLog=false
brokerFastFailureEnable=true
transferMsgByHeap=true
accessMessageInMemoryMaxRatio=40
putMsgIndexHightWater=600000
flushDelayOffsetInterval=10000
notifyConsumerIdsChangedEnable=true
msgTraceTopicName=RMQ_SYS_TRACE_TOPIC
forceRegister=true
maxTransferBytesOnMessageInDisk=65536
enableLmq=false
useTLS=false
timerWheelEnable=true
sendMessageThreadPoolNums=16
diskSpaceWarningLevelRatio=90
diskSpaceCleanForciblyRatio=85
storePathIndex=/srv/index
rocketmqHome=/opt/rocketmq
"""


class OptionsTests(SynchronousTestCase):
    """What is accepted, named and refused."""

    def test_transactions(self) -> None:
        """RocketMQ's options mean the same here."""
        found = broker_from_mapping({
            "store_path_root_dir": "base", "rejectTransactionMessage": "true", "transactionTimeOut": "9000",
            "transactionCheckInterval": "60000", "transactionCheckMax": "5",
        })
        self.assertEqual(found.ignored, ())
        self.assertEqual((found.reject_transaction_message, found.transaction_time_out), (True, 9000))
        self.assertEqual((found.transaction_check_interval, found.transaction_check_max), (60000, 5))

    def test_ordinary_file(self) -> None:
        """It starts; percent are shares; what has no meaning is listed once, what we do anyway is not."""
        config = broker_from_mapping({"store": "base", **read_properties(ORDINARY)})
        self.assertEqual(config.store.disk_space_warning_level_ratio, 0.9)
        self.assertEqual(config.store.disk_space_clean_forcibly_ratio, 0.85)
        self.assertEqual(len(config.ignored), len(set(config.ignored)))
        self.assertIn("transferMsgByHeap", config.ignored)
        for name in ("aclEnable", "useTLS", "brokerName", "enableDLegerCommitLog"):
            self.assertNotIn(name, config.ignored)

    def test_promises(self) -> None:
        """What would change a promise is refused, with the reason; the harmless value is not."""
        for name, (allowed, reason) in PROMISES.items():
            self.assertTrue(is_rocketmq_option(name), name)
            broker_from_mapping({"store": "base", name: allowed[0]})
            error = self.assertRaises(ValueError, broker_from_mapping, {"store": "base", name: "tru"})
            self.assertIn(reason, str(error))
            error = self.assertRaises(ValueError, broker_from_mapping, {"store": "base", name: "other"})
            self.assertIn(name, str(error))
        values = {"store": "b", "enableControllerMode": True}
        error = self.assertRaises(ValueError, broker_from_mapping, values)
        self.assertIn("there is no controller", str(error))

    def test_kinds(self) -> None:
        """A value of the wrong kind is an error, although it would be ignored."""
        for name, value, words in (("brokerFastFailureEnable", "yes", "true or false"),
                                   ("sendMessageThreadPoolNums", "many", "a number")):
            error = self.assertRaises(ValueError, broker_from_mapping, {"store": "base", name: value})
            self.assertIn(words, str(error))

    def test_unknown(self) -> None:
        """A name that neither has is still an error."""
        values = {"store": "base", "brokerFastFailureEnabled": "true"}
        self.assertRaises(ValueError, broker_from_mapping, values)
