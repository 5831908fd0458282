# -*- test-case-name: tests.commands.test_ha -*-
"""C{dledger ha-status}: mqadmin's shape."""

from __future__ import annotations

import json
import os
from typing import Any

from twisted.internet.defer import Deferred

from dledger.cli.rocketmq import ha as cli_ha
from dledger.cli.rocketmq.ha import fetch_reports
from dledger.rocketmq.client.ha_status import HAReport, HASlave, read_ha_info
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.broker.client.test_ha_status import JAVA_CLUSTER, JAVA_MASTER, JAVA_SLAVE, RUNTIME, Brokers
from tests.commands.fakes import CliCase

MASTER = read_ha_info("10.0.0.1:10911", JAVA_MASTER)
SLAVE = read_ha_info("10.0.0.2:10911", JAVA_SLAVE)

#: As HAStatusSubCommand of 5.3.3 prints it.
MQADMIN = """
#MasterAddr\t10.0.0.1:10911
#MasterCommitLogMaxOffset\t1000
#SlaveNum\t1
#InSyncSlaveNum\t1
#SlaveAddr                        #SlaveAckOffset             #Diff #TransferSpeed(KB/s)          #Status\
 #TransferFromWhere
127.0.0.1:44502                   980                            20             2.00               OK\
             1000
"""


class HAStatusTests(CliCase):
    """The command."""

    def setUp(self) -> None:
        super().setUp()
        self.reports: list[HAReport] = [MASTER]
        self.asked: tuple[Any, ...] = ()
        os.environ.pop("NAMESRV_ADDR", None)

        def fetch(*asked: Any) -> list[HAReport]:
            self.asked = asked
            return self.reports

        self.patch(cli_ha, "_fetch", fetch)

    def test_master(self) -> None:
        """To the byte what mqadmin prints."""
        result = self.run_cli("ha-status", "--broker", "10.0.0.1:10911")
        self.assertExit(result, 0)
        self.assertEqual(result.stdout, MQADMIN)
        self.assertEqual(self.asked[:3], ("10.0.0.1:10911", "", ""))

    def test_slave(self) -> None:
        """Its master, and when they heard of each other; "never" where they did not."""
        self.reports = [SLAVE, HAReport(address="s:1", has_ha_status=True, is_master=False, max_offset=0)]
        result = self.run_cli("ha-status", "--namesrv", "n:9876", "--cluster", "c")
        self.assertExit(result, 0)
        first, second = result.stdout.split("\n\n")
        self.assertTrue(first.startswith("\n#MasterAddr\t127.0.0.1:10912\n#CommitLogMaxOffset\t980\n"))
        self.assertRegex(first, r"#LastReadTime\t20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,001\n#LastWriteTime\t.*,002")
        self.assertTrue(first.endswith("#MasterFlushOffset\t900"))
        self.assertIn("#LastReadTime\tnever", second)
        self.assertEqual(self.asked[:3], (None, "n:9876", "c"))

    def test_fallen_behind(self) -> None:
        """A slave that lacks too much is not OK."""
        late = HASlave(address="s:1", ack_offset=-1, lack_bytes=1001, is_in_sync=False, bytes_per_second=0,
                       transfer_offset=-1)
        self.reports = [HAReport(address="m:1", has_ha_status=True, is_master=True, max_offset=1000,
                                 in_sync_slaves=0, slaves=(late,))]
        result = self.run_cli("ha-status", "--broker", "m:1")
        self.assertIn("Fall Behind", result.stdout)

    def test_old_broker(self) -> None:
        """Of one of 4.9 the facts that it reports."""
        self.reports = [HAReport(address="m:1", version="V4_9_7", min_offset=0, max_offset=700,
                                 is_master=False, lack_bytes=300)]
        result = self.run_cli("ha-status", "--broker", "m:1")
        self.assertEqual(result.stdout.split("\n")[1:-1], [
            "#BrokerAddr\tm:1", "#Version\tV4_9_7", "#Role\tslave", "#CommitLogMinOffset\t0",
            "#CommitLogMaxOffset\t700", "#Diff\t300",
        ])

    def test_silent_broker(self) -> None:
        """The others are shown; the reason is given, and the exit status shows."""
        self.reports = [MASTER, HAReport(address="x:1", problem="Connection refused")]
        result = self.run_cli("ha-status", "--broker", "10.0.0.1:10911;x:1")
        self.assertExit(result, 1)
        self.assertIn("#SlaveNum\t1", result.stdout)
        self.assertIn("dledger: broker x:1: Connection refused", result.stderr)

    def test_json(self) -> None:
        """Everything that is known."""
        self.reports = [MASTER, SLAVE]
        result = self.run_cli("ha-status", "--broker", "m:1", "--json")
        self.assertExit(result, 0)
        master, slave = json.loads(result.stdout)
        self.assertEqual((master["max_offset"], master["slaves"][0]["lack_bytes"]), (1000, 20))
        self.assertEqual((slave["is_master"], slave["master"]), (False, "127.0.0.1:10912"))

    def test_usage(self) -> None:
        """Neither or both, and what is not an address, are mistakes of the command line."""
        for words in ((), ("--broker", "m:1", "--namesrv", "n:1"), ("--broker", "m:1", "--cluster", "c"),
                      ("--broker", "m"), ("--broker", "m:1;"), ("--namesrv", ":1")):
            self.assertExit(self.run_cli("ha-status", *words), 64)

    def test_environment(self) -> None:
        """The name server may stand in the environment; a broker that is named comes first."""
        os.environ["NAMESRV_ADDR"] = "n:9876"
        self.addCleanup(os.environ.pop, "NAMESRV_ADDR", None)
        self.assertExit(self.run_cli("ha-status"), 0)
        self.assertEqual(self.asked[:2], (None, "n:9876"))
        self.assertExit(self.run_cli("ha-status", "--broker", "m:1"), 0)
        self.assertEqual(self.asked[:2], ("m:1", ""))


class FetchTests(CliCase):
    """Whom it asks."""

    def fetch(self, brokers: Brokers, *more: Any) -> Deferred[list[HAReport]]:
        """The outcome."""
        return Deferred.fromCoroutine(fetch_reports(brokers.ask, *more))

    def test_name_servers(self) -> None:
        """The first that answers; every broker of the cluster, each by itself."""
        said: list[str] = []
        self.patch(cli_ha, "remark", said.append)
        brokers = Brokers({
            ("n2:1", 106): JAVA_CLUSTER, ("10.0.0.1:10911", 907): 3, ("10.0.0.1:10911", 28): RUNTIME % 900,
            ("10.0.0.2:10911", 907): JAVA_SLAVE,
        })
        master, slave = self.successResultOf(self.fetch(brokers, None, ["n1:1", "n2:1"], "c"))
        self.assertEqual((master.is_master, master.max_offset), (True, 900))
        self.assertEqual((slave.is_master, slave.max_offset, slave.lack_bytes), (False, 980, 0))
        self.assertEqual(len(said), 1)
        self.assertIn("n1:1: Connection was refused", said[0])
        failure = self.failureResultOf(self.fetch(brokers, None, ["n1:1"], ""), DLedgerError)
        self.assertIs(failure.value.code, ResponseCode.NETWORK_ERROR)

    def test_brokers(self) -> None:
        """Those that are named, in that order."""
        brokers = Brokers({("m:1", 907): JAVA_MASTER})
        reports = self.successResultOf(self.fetch(brokers, ["x:1", "m:1"], [], ""))
        self.assertEqual([bool(one.problem) for one in reports], [True, False])
