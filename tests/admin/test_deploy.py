# -*- test-case-name: tests.admin.test_deploy -*-
"""The alert rules and the dashboard: they name metrics and labels that a member has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.broker_metrics import BrokerCollector
from dledger.admin.metrics import exposition, make_registry
from dledger.admin.name_server import NameServerCollector
from protocols.wire.ledger.readers import ReaderInfo
from tests.admin.fakes import MACHINE, picture
from tests.admin.test_broker import picture as broker_picture
from tests.admin.test_broker_metrics import figures
from tests.admin.test_name_server import FakeNameServer

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
#: Labels that Prometheus itself gives.
TARGET_LABELS = {"instance", "job"}


def series() -> dict[str, set[str]]:
    """
    The samples of a leader with a state machine, a broker and a name server: name to the names of labels.
    """
    found: dict[str, set[str]] = {}
    reader = ReaderInfo("billing", 40, 7, ("p1",))
    status = picture(reports={"push-set-back": 1}, machine=MACHINE, readers=(reader,))
    registry = make_registry(lambda: status)
    registry.register(BrokerCollector(broker_picture, figures))
    registry.register(NameServerCollector(FakeNameServer()))
    for family in text_string_to_metric_families(exposition(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


class DeployTests(SynchronousTestCase):
    """Both files."""

    def check_names(self, expressions: list[str]) -> None:
        """Each name is a metric, and nothing is selected by a label that none of them has."""
        known = series()
        for expression in expressions:
            used = re.findall(r"\b(?:dledger|process)_\w+", expression)
            self.assertTrue(used, expression)
            for label in re.findall(r"[{,]\s*(\w+)=", expression):
                has = any(label in known[name] for name in used if name in known)
                self.assertTrue(has or label in TARGET_LABELS, expression)
            self.assertEqual([name for name in used if name not in known], [], expression)
            labels = set().union(*(known[name] for name in used)) | TARGET_LABELS
            for listed in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
                self.assertLessEqual({one.strip() for one in listed.split(",")}, labels, expression)

    def test_alerts(self) -> None:
        """Each has a name of its own, words for people, and what to do."""
        document: Any = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text("utf-8"))
        rules = [rule for group in document["groups"] for rule in group["rules"]]
        self.check_names([rule["expr"] for rule in rules])
        names = [rule["alert"] for rule in rules]
        self.assertEqual(len(set(names)), len(names))
        for rule in rules:
            self.assertEqual(set(rule["annotations"]), {"summary", "action"}, rule["alert"])
            self.assertIn(rule["labels"]["severity"], ("warning", "critical"))

    def test_service_levels(self) -> None:
        """Each is measured by metrics that exist, and names alerts that exist."""
        text = (DEPLOY.parent / "docs" / "slo.md").read_text("utf-8")
        rows = re.findall(r"^\* [^;]+; ([^;]+)(?:; ([^;]+))?$", text, re.MULTILINE)
        expressions = [one for measured, _ in rows for one in re.findall(r"`([^`]*dledger_[^`]*)`", measured)]
        self.assertGreater(len(expressions), 12)
        self.check_names(expressions)
        alerts = (DEPLOY / "prometheus-alerts.yaml").read_text("utf-8")
        named = {name for _, reported in rows for name in re.findall(r"`(\w+)`", reported)}
        self.assertGreater(len(named), 10)
        self.assertEqual({name for name in named if f"alert: {name}\n" not in alerts}, set())

    def test_runbook(self) -> None:
        """Each alert has its item in docs/operations.md, in the same order, with a place to go on."""
        document: Any = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text("utf-8"))
        names = [rule["alert"] for group in document["groups"] for rule in group["rules"]]
        text = (DEPLOY.parent / "docs" / "operations.md").read_text("utf-8")
        section = text[text.index("\n## Alerts\n") :].split("\n## ")[1]
        rows = re.findall(r"^\* `(\w+)`: (.+?)\. (.+)$", section, re.MULTILINE)
        self.assertEqual([name for name, _, _ in rows], names)
        for name, _, steps in rows:
            self.assertRegex(steps, r"\]\((#[\w-]+|[\w-]+\.md(#[\w-]+)?)\)", name)

    def test_dashboards(self) -> None:
        """Every panel asks for metrics that there are, and has a place of its own; so has each dashboard."""
        uids = set()
        for path in sorted(DEPLOY.glob("grafana-*.json")):
            document = json.loads(path.read_text("utf-8"))
            uids.add(document["uid"])
            targets = [target for panel in document["panels"] for target in panel["targets"]]
            self.assertGreater(len(targets), 10)
            self.check_names([target["expr"] for target in targets])
            self.check_names([document["templating"]["list"][1]["query"]])
            places = {(one["gridPos"]["x"], one["gridPos"]["y"]) for one in document["panels"]}
            self.assertEqual(len(places), len(document["panels"]), path.name)
        self.assertEqual(uids, {"dledger", "dledger-brokers"})
