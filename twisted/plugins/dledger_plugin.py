# -*- test-case-name: tests.twistd.test_member,tests.twistd.test_broker,tests.spark.test_sidecar -*-
"""C{twistd dledger}, C{twistd dledger-broker}, C{twistd dledger-namesrv} and C{twistd dledger-export}."""

from twisted.application.service import ServiceMaker

dledger = ServiceMaker("DLedger", "dledger.daemons.ledger.member", "A member of a replicated log.", "dledger")
broker = ServiceMaker(
    "DLedger broker", "dledger.daemons.rocketmq.broker", "A broker that RocketMQ's clients and brokers understand.",
    "dledger-broker",
)
namesrv = ServiceMaker(
    "DLedger name server", "dledger.daemons.rocketmq.namesrv", "A name server for RocketMQ's brokers and clients.",
    "dledger-namesrv",
)
export = ServiceMaker(
    "DLedger export", "dledger.daemons.data.export", "Writes a log into files beside a member.", "dledger-export"
)
