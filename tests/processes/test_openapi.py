# -*- test-case-name: tests.processes.test_openapi -*-
"""
The pages of a real member, broker and name server against their own descriptions, by schemathesis.

Every operation gets requests that fit its description and requests that do not. No answer is a 5xx; each has
a status, a media type and a body that are described; what is not described is refused, and so is a request
without the token. One check is left out, that every request that fits is done: OpenAPI has no words for two
values of a query that exclude each other, nor for the ids of members.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.serving.tokens import new_token
from tests.processes.brokers import Broker, Remoting
from tests.processes.children import Child, free_ports, free_triple, wait_until
from tests.processes.members import ROOT, TWISTD, Member
from tests.processes.test_group import FILES

#: Runs it for one description after the other, which come after its own words.
_SCHEMATHESIS = """
import sys
from schemathesis.cli import schemathesis
count = int(sys.argv[1])
for page in sys.argv[2 : 2 + count]:
    try:
        schemathesis(["run", page, *sys.argv[2 + count :]])
    except SystemExit as error:
        if error.code:
            raise
"""
#: Operations of each service, and requests at least, so that a run that asks nothing is none.
_OPERATIONS = {"member": (18, 100), "broker": (15, 60), "namesrv": (8, 30)}
_COUNTS = re.compile(r"Selected: \d+/(\d+)\n  Tested: (\d+)\n.*?(\d+) generated\b", re.DOTALL)


class DescribedTests(SynchronousTestCase):
    """Real services with something to show, whose pages need a token for what changes or shows contents."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.token, line = new_token("ops")
        tokens = self.directory / "tokens"
        tokens.write_text(line)
        self.ports = dict(zip(_OPERATIONS, free_ports(3), strict=True))
        options = {"admin_token_file": str(tokens)}
        words = {kind: ("--admin", f"tcp:{port}:interface=127.0.0.1") for kind, port in self.ports.items()}
        names = f"127.0.0.1:{free_ports(1)[0]}"
        self.peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        self.broker = Broker("broker", self.directory, role="ASYNC_MASTER", port=free_triple(),
                             options={**options, "namesrv_addr": names}, extra=words["broker"])
        self.services: dict[str, Child] = {
            "namesrv": Child(
                "namesrv",
                [sys.executable, "-c", TWISTD, "-n", "--pidfile=", "dledger-namesrv", "--listen",
                 f"tcp:{names.rpartition(':')[2]}:interface=127.0.0.1", "--set", f"admin_token_file={tokens}",
                 "--set", f"kv_config_path={self.directory / 'names' / 'kv.json'}", *words["namesrv"]],
                log_path=self.directory / "namesrv.log",
                environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            ),
            "broker": self.broker,
            "member": Member("n0", self.peers, self.directory / "n0", options={**FILES, **options},
                             extra=words["member"]),
        }
        for service in self.services.values():
            self.addCleanup(service.kill)
            service.start()
        for kind, service in self.services.items():
            wait_until(lambda kind=kind: self.is_ready(kind), seconds=60, every=0.1,
                       what=f"{kind} is ready", notify=service.log_tail)

    def is_ready(self, kind: str) -> bool:
        """Whether it says so."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[kind]}/readyz", timeout=120) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def test_pages(self) -> None:
        """All of the three services."""
        with dledger.connect(f"n0-{self.peers['n0']}") as log:
            log.append_many(b"%d" % number for number in range(50))
        connection = Remoting(self.broker.address)
        for number in range(4):
            connection.put("orders", 0, b"body", KEYS=f"key-{number}")
            connection.next()
        connection.close()
        reported = self.play()
        counts = [tuple(map(int, found)) for found in _COUNTS.findall(reported)]
        self.assertEqual([one[:2] for one in counts], [(known, known) for known, _ in _OPERATIONS.values()])
        for (_, _, generated), (_, requests) in zip(counts, _OPERATIONS.values(), strict=True):
            self.assertGreater(generated, requests, reported)
        self.assertTrue(all(service.is_running for service in self.services.values()))

    def play(self) -> str:
        """What schemathesis says where it finds nothing."""
        pages = [f"http://127.0.0.1:{self.ports[kind]}/openapi.json" for kind in _OPERATIONS]
        # Its own list of answers to wrong data has no 414.
        (self.directory / "schemathesis.toml").write_text(
            "[checks]\nnegative_data_rejection.expected-statuses = "
            "[400, 401, 403, 404, 405, 406, 409, 414, 415, 422, 428, 429, '5xx']\n")
        done = subprocess.run(
            [sys.executable, "-c", _SCHEMATHESIS, str(len(pages)), *pages,
             "--header", f"Authorization: Bearer {self.token}", "--checks", "all",
             "--exclude-checks", "positive_data_acceptance", "--phases", "coverage,fuzzing",
             "--max-examples", "10", "--seed", "1", "--generation-database", "none", "--no-color",
             # How fast a machine is, is no property of the pages.
             "--suppress-health-check", "all"],
            cwd=self.directory, capture_output=True, text=True, timeout=120,
        )
        reported = done.stdout + done.stderr
        logs = "\n".join(service.log_tail() for service in self.services.values())
        self.assertEqual(done.returncode, 0, f"{reported}\n{logs}")
        return reported
