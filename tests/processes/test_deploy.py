# -*- test-case-name: tests.processes.test_deploy -*-
"""The services of C{deploy/systemd} as they start, and C{deploy/compose.yaml}'s health check as it asks."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.daemons.settings.options import TABLES
from tests.processes.children import Child, free_ports, free_triple, wait_until
from tests.processes.members import ROOT, TWISTD, Member, ended_well
from tests.slowness import patient
from tests.test_deploy import DEPLOY, UNITS, compose, unit, words_of


def health_check(port: int) -> int:
    """The exit status of the check in compose.yaml, at another port."""
    _kind, _python, *words = compose()["services"]["n0"]["healthcheck"]["test"]
    asked = [word.replace(":8080/", f":{port}/") for word in words]
    return subprocess.run([sys.executable, *asked], capture_output=True, timeout=240).returncode


class MonitoringTests(SynchronousTestCase):
    """C{deploy/monitoring} with a real Prometheus."""

    def test_prometheus(self) -> None:
        """It reads its file, takes the alert rules, and asks a member, which no alert is about."""
        program = shutil.which("prometheus")
        if program is None:
            raise SkipTest("prometheus is not installed; on Debian: apt-get install prometheus")
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        listen, page, own = free_ports(3)
        member = Member("n0", {"n0": f"127.0.0.1:{listen}"}, Path(held.name) / "n0",
                        extra=("--admin", f"tcp:{page}:interface=127.0.0.1"))
        self.addCleanup(member.kill)
        member.start()
        text = (DEPLOY / "monitoring" / "prometheus.yaml").read_text("utf-8")
        text = text.replace("/etc/prometheus/alerts.yaml", str(DEPLOY / "prometheus-alerts.yaml"))
        text = re.sub(r"targets: .*", f'targets: ["127.0.0.1:{page}"]', text).replace("10s", "1s")
        configuration = Path(held.name) / "prometheus.yaml"
        configuration.write_text(text, "utf-8")
        prometheus = Child(
            "prometheus", [program, f"--config.file={configuration}", f"--storage.tsdb.path={held.name}/tsdb",
                           f"--web.listen-address=127.0.0.1:{own}"],
            log_path=Path(held.name) / "prometheus.log")
        self.addCleanup(prometheus.kill)
        prometheus.start()

        def asked(path: str) -> Any:
            try:
                with urlopen(f"http://127.0.0.1:{own}/api/v1/{path}", timeout=patient(20)) as answer:
                    return json.load(answer)["data"]
            except OSError:
                return {}

        def leads() -> bool:
            found = asked("query?query=dledger_is_leader").get("result", [])
            return [one["value"][1] for one in found] == ["1"]

        def evaluated() -> bool:
            rules = [rule for group in asked("rules").get("groups", []) for rule in group["rules"]]
            return bool(rules) and {rule["health"] for rule in rules} == {"ok"}

        for reached in (leads, evaluated):
            wait_until(reached, seconds=60, every=0.2, what=reached.__name__, notify=prometheus.log_tail)
        self.assertEqual([one for one in asked("alerts")["alerts"] if one["state"] == "firing"], [])


class ServicesTests(SynchronousTestCase):
    """Their own commands, in their directories, with one file of options for all."""

    def test_start_and_stop(self) -> None:
        """
        Each stays in the foreground, logs to standard output, serves, writes nothing outside its directory
        nor beside its store, and ends by SIGTERM in the time that the unit gives it.
        """
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        pages = dict(zip(UNITS, free_ports(3), strict=True))
        listens = dict(zip(UNITS, (free_ports(1)[0], free_triple(), free_ports(1)[0]), strict=True))
        options = Path(held.name) / "all.toml"
        options.write_text("".join(
            f'[{table}]\nlisten = "tcp:{listens[name]}:interface=127.0.0.1"\nadmin = {pages[name]}\n'
            for table, name in zip(TABLES, UNITS, strict=True)
        ))
        children: dict[str, Child] = {}
        notified: dict[str, socket.socket] = {}
        for name, (_service, instance) in UNITS.items():
            state = Path(held.name) / "state" / name
            state.mkdir(parents=True)
            notified[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(notified[name].close)
            notified[name].bind(f"{held.name}/{name}.notify")
            notified[name].settimeout(patient(60))
            words = words_of(*unit(name, instance)["ExecStart"], options)
            children[name] = Child(
                name, ["env", "-C", str(state), sys.executable, "-c", TWISTD, *words],
                log_path=Path(held.name) / f"{name}.log",
                environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "WATCHDOG_USEC": "1000000",
                             "NOTIFY_SOCKET": f"{held.name}/{name}.notify"},
            )
            self.addCleanup(children[name].kill)
            children[name].start()
        for name, child in children.items():
            self.assertEqual([notified[name].recv(99) for _ in range(3)], [b"READY=1", *[b"WATCHDOG=1"] * 2])
            wait_until(lambda port=pages[name]: health_check(port) == 0, seconds=60, every=0.2,
                       what=f"{name} is healthy", notify=child.log_tail)
            self.assertTrue(child.is_running)
        for name, child in children.items():
            self.assertTrue(ended_well(child.stop(seconds=float(unit(name, "x")["TimeoutStopSec"][0]))))
            self.assertIn("Server Shut Down", child.log_tail(5))
            while (sign := notified[name].recv(99)) != b"STOPPING=1":
                self.assertEqual(sign, b"WATCHDOG=1")
            self.assertNotEqual(health_check(pages[name]), 0)
        written = sorted(path.name for path in (Path(held.name) / "state").glob("*/*"))
        self.assertEqual(written, ["dledger-broker-data", "dledger-data", "dledger-namesrv-data"])
