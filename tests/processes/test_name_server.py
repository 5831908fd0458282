# -*- test-case-name: tests.processes.test_name_server -*-
"""A broker with a name server in one process, as C{twistd} starts it: one line, the smallest cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.brokers import SENT, Broker, Remoting
from tests.processes.children import free_ports, free_triple, wait_until
from tests.processes.members import ROOT


class WithNameServerTests(SynchronousTestCase):
    """twistd dledger-broker --with-namesrv."""

    def test_smallest_cluster(self) -> None:
        """A client finds the broker, and sends; commands find it; both end in order, and start again."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        (port,) = free_ports(1)
        listen = f"tcp:{port}:interface=127.0.0.1"
        broker = Broker("a", Path(held.name), role="async-master", port=free_triple(),
                        extra=("--with-namesrv", "--namesrv-listen", listen))
        self.addCleanup(broker.kill)
        for life in range(2):
            broker.start()
            broker.wait_started()
            name_server = Remoting(f"127.0.0.1:{port}")
            self.addCleanup(name_server.close)
            wait_until(lambda one=name_server: one.ask(105, {"topic": "TBW102"}).code == 0, seconds=60,
                       what="the broker is registered")
            route = json.loads(name_server.ask(105, {"topic": "TBW102"}).body)
            self.assertEqual(route["brokerDatas"][0]["brokerAddrs"], {"0": broker.address})
            client = Remoting(broker.address)
            self.addCleanup(client.close)
            client.put("T", 0, b"hello")
            self.assertIn(client.next().code, SENT)
            wait_until(lambda one=name_server: one.ask(105, {"topic": "T"}).code == 0, seconds=60,
                       what="the new topic is registered")
            if not life:
                self.assertEqual(name_server.ask(100, {"namespace": "N", "key": "k", "value": "v"}).code, 0)
            self.assertEqual(name_server.ask(101, {"namespace": "N", "key": "k"}).ext_fields, {"value": "v"})
            self.assertIn(broker.address, self.command("ha-status", "--namesrv", f"127.0.0.1:{port}"))
            broker.end()
            log = broker.log_tail(30)
            self.assertLess(log.index("stopped"), log.index("name server stopped"))

    def command(self, *words: str) -> str:
        """The output of a C{dledger} command."""
        done = subprocess.run(
            [sys.executable, "-c", "from dledger.cli.main import main; main()", *words],
            capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout
