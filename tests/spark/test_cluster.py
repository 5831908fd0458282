# -*- test-case-name: tests.spark.test_cluster -*-
"""
Real clusters: a standalone one with two workers, C{local-cluster}, an archive of C{spark-submit}, and a
Connect server. One master and two workers serve all tests of the process.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile
from zlib import crc32

import pyspark
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.session import prepare
from tests.processes.members import ROOT
from tests.spark.ledgers import Ledger, plain_rows
from tests.spark.members import FakeMember, records_of

_SPARK_HOME = Path(pyspark.__file__).parent
#: The longest time for one job, in seconds: a machine with two busy cores.
_JOB_S = 150
_BODIES = [b"body %d" % number for number in range(300)]
#: Executors that have this on their path cannot import the package.
_WITHOUT = """\
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dledger", "pyspark_dledger"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def _environment(**more: str) -> dict[str, str]:
    found = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(_SPARK_HOME),
             "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    prepare(found)
    return {**found, **more}


def _start(arguments: list[str], said: str, *, path: str = str(ROOT)) -> str:
    """Start a server for the time of this process; the part of its output that matches C{said}."""
    process = subprocess.Popen(
        [str(_SPARK_HOME / "bin" / "spark-class"), *arguments], env=_environment(PYTHONPATH=path),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
    )
    atexit.register(process.wait)
    atexit.register(process.terminate)  # before the wait: the last that was registered is the first to run
    assert process.stdout is not None
    deadline, text = time.monotonic() + _JOB_S, ""
    while time.monotonic() < deadline:
        if not select.select([process.stdout], [], [], 1)[0]:
            continue
        data = os.read(process.stdout.fileno(), 65536)
        text += data.decode(errors="replace")
        found = re.search(said, text)
        if found:
            return found[1]
        if not data:
            break
    raise AssertionError(f"{arguments[0]} did not start: {text[-2000:]}")


@functools.cache
def executor_path() -> Path:
    """The link that executors have as C{PYTHONPATH}: to this tree, unless a test points it elsewhere."""
    base = tempfile.mkdtemp(prefix="dledger-executors-")
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    link = Path(base) / "site"
    link.symlink_to(ROOT)
    return link


def point(target: Path) -> None:
    """From now on new executors have C{target} on their path."""
    link = executor_path()
    link.unlink()
    link.symlink_to(target)


@functools.cache
def cluster() -> str:
    """The address of a standalone master that has two workers."""
    master = _start(
        ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"],
        r"Starting Spark master at (spark://\S+)",
    )
    for _ in range(2):
        work = tempfile.mkdtemp(prefix="dledger-worker-")
        atexit.register(shutil.rmtree, work, ignore_errors=True)
        _start(
            ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", "0",
             "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", work, master],
            r"(Successfully registered with master)", path=str(executor_path()),
        )
    return master


def archive(target: Path) -> Path:
    """The package as C{--py-files} takes it."""
    with ZipFile(target, "w") as file:
        for top in ("dledger", "protocols", "pyspark_dledger"):
            for source in sorted((ROOT / top).rglob("*.py")):
                file.write(source, source.relative_to(ROOT))
    return target


class ClusterTests(SynchronousTestCase):
    """A ledger of 300 entries, and a member with the same bodies."""

    def setUp(self) -> None:
        ledger = Ledger(self.mktemp())
        self.addCleanup(ledger.close)
        ledger.append(_BODIES, term=1)
        ledger.commit()
        self.path = ledger.path
        member = FakeMember("n0", records_of(_BODIES))
        self.addCleanup(member.close)
        self.bootstrap = f"n0-{member.address}"
        self.assertEqual([row[7] for row in plain_rows(self.path)], _BODIES)
        self.summary = [300, sum(range(300)), sum(map(len, _BODIES)), sum(map(crc32, _BODIES))]
        self.rows = {"path": self.summary, "bootstrap": self.summary, "stream": 300}
        self.frames = {"toPandas": sum(range(300)), "pandas_api": sum(range(300)), "mapInArrow": 300,
                       "bootstrap": 300}

    def run_job(self, command: list[str], environment: Mapping[str, str]) -> Any:
        """What a job found."""
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_JOB_S, check=False, cwd=tempfile.gettempdir(),
        )
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        return json.loads(done.stdout.splitlines()[-1])

    def job(self, job: str, master: str, **settings: str) -> Any:
        """What a job on a cluster found, in a driver of its own."""
        command = [sys.executable, "-m", "tests.spark.cluster_job", job, self.path, self.bootstrap,
                   "--master", master]
        given = {"spark.executor.memory": "512m", "spark.cores.max": "2", **settings}
        for name, value in given.items():
            command += ["--set", f"{name}={value}"]
        return self.run_job(command, _environment())

    def job_with(self, executors: Path) -> Any:
        """What a count found when executors have another path than the driver."""
        master = cluster()
        point(executors)
        self.addCleanup(point, ROOT)
        return self.job("fail", master)

    def test_standalone(self) -> None:
        """
        Batches, streams, pandas and Arrow give all rows; a directory that an executor does not have is an
        error that names the machine.
        """
        found = self.job("all", cluster())
        self.assertEqual(found["read"], self.rows)
        self.assertEqual(found["frames"], self.frames)
        self.assertEqual(found["rowwise"], {"path": self.summary})
        self.assertIn(f"on machine {socket.gethostname()}: ", found["gone"]["error"])
        self.assertIn(self.path, found["gone"]["error"])

    def test_local_cluster(self) -> None:
        """Two executors of one machine, each a process."""
        self.assertEqual(self.job("read", "local-cluster[2,1,1024]")["read"], self.rows)

    def test_other_version(self) -> None:
        """Executors with another version of the package do not read: the error names both and the machine."""
        other = Path(self.mktemp()).absolute()
        for top in ("dledger", "protocols", "pyspark_dledger"):
            shutil.copytree(ROOT / top, other / top, ignore=shutil.ignore_patterns("__pycache__"))
        with open(other / "dledger" / "spark" / "scan.py", "a") as file:
            file.write("# another version\n")
        error = self.job_with(other)["fail"]["error"]
        self.assertRegex(error, r"the driver has dledger .*\(sources (\w+)\), but the executor on machine "
                                r"\S+ has dledger .*\(sources (?!\1)\w+\)")

    def test_without_package(self) -> None:
        """Executors without the package: Spark's error names the module that is missing."""
        other = Path(self.mktemp()).absolute()
        other.mkdir()
        (other / "sitecustomize.py").write_text(_WITHOUT)
        error = self.job_with(other)["fail"]["error"]
        self.assertIn("No module named 'dledger'", error)

    def test_archive(self) -> None:
        """An archive of C{--py-files} is enough for executors that do not have the package."""
        zipped = archive(Path(self.mktemp()).absolute().with_suffix(".zip"))
        other = Path(self.mktemp()).absolute()
        other.mkdir()
        master = cluster()
        point(other)
        self.addCleanup(point, ROOT)
        command = [
            str(_SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--py-files", str(zipped),
            "--conf", "spark.executor.memory=512m",
            "--conf", "spark.ui.enabled=false", "--driver-memory", "512m",
            str(ROOT / "tests" / "spark" / "cluster_job.py"), "read", self.path, self.bootstrap,
        ]
        self.assertEqual(self.run_job(command, _environment(PYTHONPATH=str(other)))["read"], self.rows)

    def test_connect(self) -> None:
        """A Connect client whose server finds the format by itself."""
        command = [sys.executable, "-m", "tests.spark.cluster_job", "read", self.path, self.bootstrap]
        environment = _environment(SPARK_REMOTE="local[2]", SPARK_LOCAL_REMOTE="1")
        self.assertEqual(self.run_job(command, environment)["read"], self.rows)
