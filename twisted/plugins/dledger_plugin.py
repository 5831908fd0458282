# -*- test-case-name: tests.node.test_tap,tests.broker.test_tap,tests.spark.test_sidecar -*-
"""C{twistd dledger}, C{twistd dledger-broker} and C{twistd dledger-export}."""

from twisted.application.service import ServiceMaker

dledger = ServiceMaker("DLedger", "dledger.tap", "A member of a replicated log.", "dledger")
broker = ServiceMaker(
    "DLedger broker", "dledger.tap_broker", "A broker that RocketMQ's clients and brokers understand.",
    "dledger-broker",
)
export = ServiceMaker(
    "DLedger export", "dledger.tap_export", "Writes a log into files beside a member.", "dledger-export"
)
