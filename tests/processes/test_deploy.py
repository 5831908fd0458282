# -*- test-case-name: tests.processes.test_deploy -*-
"""The services of C{deploy/systemd} as they start, and C{deploy/compose.yaml}'s health check as it asks."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.daemons.settings.options import TABLES
from tests.processes.children import Child, free_ports, free_triple, wait_until
from tests.processes.members import ROOT, TWISTD, ended_well
from tests.slowness import patient
from tests.test_deploy import UNITS, compose, unit, words_of


def health_check(port: int) -> int:
    """The exit status of the check in compose.yaml, at another port."""
    _kind, _python, *words = compose()["services"]["n0"]["healthcheck"]["test"]
    asked = [word.replace(":8080/", f":{port}/") for word in words]
    return subprocess.run([sys.executable, *asked], capture_output=True, timeout=240).returncode


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
