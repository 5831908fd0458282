# -*- test-case-name: tests.spark.test_cluster -*-
"""
Real clusters: a standalone one with two workers, C{local-cluster}, an archive of C{spark-submit}, and a
Connect server. One standalone cluster serves all tests.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import cast
from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.jvm import EXTENSION, JAR
from tests.release_check import wheel
from tests.spark import jvms
from tests.spark.clusters import (
    SPARK_HOME,
    Found,
    SparkServer,
    bare_python,
    job_alone,
    machine,
    other_python,
    place,
    run_job,
    standalone,
    switched,
)
from tests.spark.ledgers import Ledger
from tests.spark.members import FakeMember, records_of
from tests.spark.sessions import CONFIG
from tests.spark.test_arrow import recipe
from tests.spark.test_commit_log import BrokerLog

_BODIES = [b"body %d" % number for number in range(300)]
_MESSAGES = 40
#: For jobs on a cluster.
_SETTINGS = {
    "spark.driver.memory": "512m", "spark.driver.extraJavaOptions": jvms.options(),
    "spark.executor.memory": "512m", "spark.executor.extraJavaOptions": jvms.options(),
    "spark.cores.max": "2", "spark.task.maxFailures": "1",
    "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
}
#: One executor, to save time.
_ONE_EXECUTOR = {**_SETTINGS, "spark.cores.max": "1"}
_WITH_EXTENSION = ("--jars", str(JAR), "--conf", f"spark.sql.extensions={EXTENSION}")


def _options(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


class ClusterTests(SynchronousTestCase):
    """A ledger of 300 entries, a member with the same bodies, and a broker's store."""

    def setUp(self) -> None:
        ledger = Ledger(self.mktemp())
        self.addCleanup(ledger.close)
        ledger.append(_BODIES, term=1)
        ledger.commit()
        member = FakeMember("n0", records_of(_BODIES))
        self.addCleanup(member.close)
        store = os.path.abspath(self.mktemp())
        log = BrokerLog(f"{store}/commitlog")
        for number in range(_MESSAGES):
            log.append(number)
        self.path = ledger.path
        self.data = [ledger.path, f"n0-{member.address}", store]
        entries = [300, sum(range(300)), sum(map(len, _BODIES)), sum(map(crc32, _BODIES))]
        messages = [_MESSAGES, sum(log.written)]
        self.all: Found = {
            "columnar": True, "directory": entries, "members": entries, "messages": messages,
            "named": entries, "directory_stream": entries[:2], "members_stream": entries[:2],
            "rows": [entries, entries, messages],
            "frames": {"toPandas": entries[1], "pandas_api": entries[1], "mapInArrow": entries[0]},
        }

    def some(self, *parts: str) -> Found:
        """What these parts of a job must find."""
        return {part: self.all[part] for part in parts}

    def job(
        self, master: str, *parts: str, settings: Mapping[str, str] | None = None, **more: str
    ) -> Found:
        """
        What a job with a driver of its own found.

        @param more: of its environment.
        """
        command = [sys.executable, job_alone(), "--master", master]
        for name, value in {**CONFIG, **_SETTINGS, **(settings or {})}.items():
            command += ["--set", f"{name}={value}"]
        return run_job(self.id().rpartition(".")[2], command, self.data, *parts, **more)

    def test_standalone(self) -> None:
        """
        Two executors: batches, streams, pandas and Arrow give all rows, with and without the extension, whose
        jar the driver sends; a directory that an executor does not have is an error that names the machine.
        """
        found = self.job(standalone(), *self.all, "gone")
        gone = cast(str, found.pop("gone"))
        self.assertEqual(found, self.all)
        self.assertIn(f"on machine {machine()}: ", gone)
        self.assertIn(self.path, gone)

    def test_local_cluster(self) -> None:
        """Two executors, each a process of this machine."""
        parts = ("columnar", "directory", "members", "messages", "members_stream")
        self.assertEqual(self.job("local-cluster[2,1,1024]", *parts), self.some(*parts))

    def test_wrong_package(self) -> None:
        """
        Executors without the package, or with another version of it, do not read: the error names the
        machine, its Python and both versions, and says what to do.
        """
        bare, other = bare_python(), other_python()
        pythons = (switched("bare", machines=bare), switched("other", machines=other))
        found = self.job(
            standalone(), "errors", settings=_ONE_EXECUTOR, DLEDGER_TEST_PYTHONS=os.pathsep.join(pythons)
        )
        without, mismatch = cast(list[str], found["errors"])
        self.assertRegex(
            without,
            rf"ImportError: the driver has dledger .*, but {bare} on machine {machine()} cannot import it: "
            r"No module named 'dledger'. Install the same version there, or send it with the job",
        )
        self.assertRegex(
            mismatch,
            rf"BuildMismatch: the driver has dledger .*\(sources (\w+)\), but {other} on machine {machine()} "
            r"has dledger .*\(sources (?!\1)\w+\): install the same version",
        )

    def test_recipe(self) -> None:
        """
        The recipe of docs/spark.md: C{spark-submit} brings package and extension to a driver and to executors
        that do not have them. A batch and a stream have each row once, too, while executors are killed, with
        copies of slow tasks.
        """
        settings = {
            **CONFIG, **_SETTINGS, "spark.task.maxFailures": "20", "spark.speculation": "true",
            "spark.speculation.interval": "10ms", "spark.speculation.quantile": "0.1",
            "spark.speculation.multiplier": "1.01", "spark.speculation.minTaskRuntime": "1ms",
        }
        summary, parts = cast(list[int], self.all["directory"]), ("columnar", "directory", "members_stream")
        job = shlex.join([*_options(settings), str(job_alone())])
        made = place() / "recipe"
        made.mkdir()
        submit = str(SPARK_HOME / "bin" / "spark-submit")
        script = recipe("## On a cluster", page="spark")
        for words, others in (
            ("pip install", f"{sys.executable} -m pip install -q"), ("stage dledger", f"stage {wheel(made)}"),
            ("spark://host:7077", "local-cluster[2,1,1024]"), ("spark-submit", submit),
            ("job.py", f'{job} "$@"'),
        ):
            self.assertIn(words, script)
            script = script.replace(words, others)
        bare = bare_python()
        found = run_job(
            "spark-submit", ["bash", "-ec", f"cd {made}\n{script}", "recipe"], self.data, *parts, "killed",
            PYTHONPATH="", PYSPARK_DRIVER_PYTHON=str(bare), PYSPARK_PYTHON=str(bare),
            PATH=f"{bare.parent}:{os.environ['PATH']}",
        )
        self.assertEqual(found, {**self.some(*parts), "killed": [summary, summary[:2]]})

    def test_connect(self) -> None:
        """
        A Connect server in front of the cluster finds the format by itself; its client has no Java and not
        this package.
        """
        server = SparkServer(
            "connect", "org.apache.spark.deploy.SparkSubmit",
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", standalone(),
            *_WITH_EXTENSION, *_options(_ONE_EXECUTOR),
            *_options({"spark.connect.grpc.binding.address": "127.0.0.1",
                       "spark.connect.grpc.binding.port": "0", "spark.sql.session.timeZone": "UTC"}),
            "spark-internal", memory="512m", SPARK_CONNECT_MODE="0",
        )
        server.start()
        self.addCleanup(server.kill)
        port = server.said(r"Spark Connect server started at: \S*:(\d+)")
        bare, parts = bare_python(), ("columnar", "members", "named", "directory_stream", "frames")
        found = run_job(
            "client", [str(bare), job_alone()], self.data, *parts, PYTHONPATH="",
            PATH=str(bare.parent), JAVA_HOME="/nonexistent", SPARK_REMOTE=f"sc://127.0.0.1:{port}",
        )
        self.assertEqual(found, self.some(*parts))
        self.assertEqual(server.stop(), 143)
