# -*- test-case-name: tests.admin.test_promtool -*-
"""Prometheus's own tool reads the alert rules and the pages of metrics, and rings the alerts."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from twisted.internet.task import Clock
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.admin.broker import BrokerPages
from dledger.admin.metrics import exposition, make_registry
from dledger.admin.name_server import NameServerPages
from protocols.wire.ledger.readers import ReaderInfo
from tests.admin.fakes import MACHINE
from tests.admin.fakes import picture as member_picture
from tests.admin.test_broker import FakeBroker
from tests.admin.test_broker_metrics import figures
from tests.admin.test_deploy import DEPLOY
from tests.admin.test_name_server import FakeNameServer

_RULES = DEPLOY / "prometheus-alerts.yaml"
#: Series of the same values, these each minute in promtool's words, when to look, the alert that rings then.
_RINGS: tuple[tuple[str, str, str, str], ...] = (
    ('has_leader{group="G",self_id="n0"}', "0+0x10", "5m", "NoLeader"),
    ('broker_is_healthy{instance="b"}', "1 0+0x10", "5m", "BrokerNotHealthy"),
    ('broker_dead_letters{instance="b",group="billing"}', "0+0x4 3+0x6", "8m", "BrokerDeadLetters"),
    ('broker_slave_lag_bytes{instance="b",slave="s"}', "300000000+0x30", "20m", "BrokerSlaveBehind"),
    ('reader_next_index{group="G",reader="r"} & reader_lag_entries{group="G",reader="r"}', "7+0x80", "75m",
     "ReaderStopped"),
    ('namesrv_brokers_expired_total{instance="n"}', "0+0x4 2+0x6", "8m", "NameServerLostBrokers"),
)


def promtool(*arguments: str, text: bytes = b"") -> tuple[int, str]:
    """Its exit status and its output. @raise SkipTest: it is not installed."""
    program = shutil.which("promtool")
    if program is None:
        raise SkipTest("promtool is not installed; on Debian: apt-get install prometheus")
    ended = subprocess.run([program, *arguments], input=text, capture_output=True, timeout=60, check=False)
    return ended.returncode, (ended.stdout + ended.stderr).decode()


def _member() -> bytes:
    readers = (ReaderInfo("billing", 40, 7, ("p1",)),)
    return exposition(make_registry(lambda: member_picture(machine=MACHINE, readers=readers)))


def _broker(member: Callable[[], Any] | None = None) -> bytes:
    broker = FakeBroker()
    broker.figures = figures()
    pages: Any = BrokerPages(broker, lambda: 0.0, wall_s=lambda: 0.0, member=member)
    registry: CollectorRegistry = pages.registry
    return generate_latest(registry)


def _name_server() -> bytes:
    pages: Any = NameServerPages(FakeNameServer(), Clock())
    registry: CollectorRegistry = pages.registry
    return generate_latest(registry)


class PromtoolTests(SynchronousTestCase):
    """Its complaints."""

    def test_rules(self) -> None:
        """It takes every rule."""
        status, reported = promtool("check", "rules", str(_RULES))
        self.assertEqual(status, 0, reported)
        self.assertIn(f"{_RULES.read_text('utf-8').count('- alert: ')} rules found", reported)

    def check_page(self, page: bytes) -> None:
        """It has nothing to say of our names; those of the exporter are as they are in dashboards."""
        self.assertGreater(page.count(b"\n"), 20)
        _, reported = promtool("check", "metrics", text=page)
        self.assertEqual([line for line in reported.splitlines() if not line.startswith("rocketmq_")], [])

    def test_member(self) -> None:
        """A scrape of a member with a state machine and a reader."""
        self.check_page(_member())

    def test_broker(self) -> None:
        """A scrape of a broker with a commit log."""
        self.check_page(_broker())

    def test_raft_broker(self) -> None:
        """A scrape of a broker on a raft log, with the metrics of its member."""
        self.check_page(_broker(member_picture))

    def test_name_server(self) -> None:
        """A scrape of a name server."""
        self.check_page(_name_server())

    def test_bad_page(self) -> None:
        """It notices what is wrong: these tests could fail."""
        status, reported = promtool("check", "metrics", text=b"# TYPE dledger_x counter\ndledger_x 1\n")
        self.assertEqual(status, 3, reported)
        self.assertIn("dledger_x counter metrics should have", reported)

    def test_rings(self) -> None:
        """Alerts ring for their problem, and not for a healthy member."""
        tests = [
            {
                "interval": "1m", "input_series": [
                    {"series": f"dledger_{one}", "values": values} for one in series.split(" & ")
                ],
                "promql_expr_test": [
                    {"expr": f'count(ALERTS{{alertname="Dledger{alert}",alertstate="firing"}})',
                     "eval_time": when, "exp_samples": found}
                    for when, found in (("0m", []), (at, [{"labels": "{}", "value": 1}]))
                ],
            }
            for series, values, at, alert in _RINGS
        ]
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"rule_files": [str(_RULES)], "evaluation_interval": "1m", "tests": tests}, file)
        status, reported = promtool("test", "rules", path)
        self.assertEqual(status, 0, reported)
