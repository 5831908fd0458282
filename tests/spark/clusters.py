# -*- test-case-name: tests.spark.test_cluster -*-
"""
A standalone cluster on this machine, Pythons for executors that lack the package, and jobs in processes of
their own.

Rules: every process is a L{Child}, so it ends with this one, and every wait has a deadline. A machine of the
cluster is distinguished from the driver's by an environment variable of its worker.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

import pyspark

from dledger.spark.session import prepare
from tests.processes.children import Child, ChildError, end_all, wait_until
from tests.processes.members import ROOT
from tests.spark import jvms

#: The longest time for a job, and for the start of a server, in seconds: a machine with busy cores.
JOB_S = 400
SPARK_HOME = Path(pyspark.__file__).parent
_PACKAGES = ("dledger", "protocols", "pyspark_dledger")
_MACHINE = "DLEDGER_TEST_MACHINE"
_JOB = ROOT / "tests" / "spark" / "cluster_job.py"
#: A Python that is another one on a machine of the cluster.
_SWITCH = f"""\
#!/bin/sh
if [ -n "${_MACHINE}" ]; then unset PYTHONPATH; exec %s "$@"; fi
exec %s "$@"
"""

Found = dict[str, object]


@functools.cache
def place() -> Path:
    """A directory for all that is here; removed at the end, after the processes that write to it."""
    found = Path(tempfile.mkdtemp(prefix="dledger-cluster-"))

    def remove() -> None:
        end_all()
        shutil.rmtree(found, ignore_errors=True)

    atexit.register(remove)
    return found


def environment(**more: str) -> dict[str, str]:
    """For every process: this tree, this Python, this PySpark, the loopback address."""
    found = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(SPARK_HOME), "TMPDIR": str(place()),
             "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    prepare(found)
    return {**found, **more}


class SparkServer(Child):
    """A class of Spark with a C{main}, in a JVM that starts fast and stays small."""

    def __init__(self, name: str, *arguments: str, memory: str = "256m", **more: str) -> None:
        """
        @param memory: its heap.
        @param more: of its environment.
        """
        small = {"SPARK_DAEMON_MEMORY": memory, "SPARK_DAEMON_JAVA_OPTS": jvms.options()}
        super().__init__(
            name, [str(SPARK_HOME / "bin" / "spark-class"), *arguments], log_path=place() / f"{name}.log",
            environment={**environment(), **small, **more},
        )

    def said(self, pattern: str) -> str:
        """
        Wait until a part of its log matches.

        @return: the group of the pattern.
        @raise ChildError: it does not in time.
        """
        found: list[str] = []

        def is_said() -> bool:
            if not self.is_running:
                raise ChildError(f"{self.name} ended\n{self.log_tail(40)}")
            found.extend(re.findall(pattern, self.log_path.read_text(errors="replace"))[:1])
            return bool(found)

        wait_until(is_said, seconds=JOB_S, what=f"{self.name} says {pattern}", every=0.1)
        return found[0]


@functools.cache
def standalone() -> str:
    """The address of a master with two workers, one core each; they end with this process."""
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    master = SparkServer("master", "org.apache.spark.deploy.master.Master", *here)
    master.start()
    address = master.said(r"Starting Spark master at (spark://\S+)")
    workers = [
        SparkServer(
            name, "org.apache.spark.deploy.worker.Worker", *here, "--cores", "1", "--memory", "1g",
            "--work-dir", str(place() / name), address, **{_MACHINE: name},
        )
        for name in ("worker-0", "worker-1")
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.said("(Successfully registered with master)")
    return address


@functools.cache
def bare_python(name: str = "bare") -> Path:
    """A Python with everything that is installed here except this package."""
    base = place() / name
    venv.EnvBuilder(symlinks=True, with_pip=False).create(base)
    site = next(base.glob("lib/python*/site-packages"))
    for one in SPARK_HOME.parent.iterdir():
        if "dledger" not in one.name and one.name not in _PACKAGES:
            (site / one.name).symlink_to(one)
    return base / "bin" / "python"


@functools.cache
def other_python() -> Path:
    """A Python with another version of this package."""
    python = bare_python("other")
    site = next(python.parents[1].glob("lib/python*/site-packages"))
    for top in _PACKAGES:
        shutil.copytree(ROOT / top, site / top, ignore=shutil.ignore_patterns("__pycache__"))
    with open(site / "dledger" / "spark" / "scans" / "scan.py", "a") as file:
        file.write("# another version\n")
    return python


def switched(name: str, *, machines: Path, driver: Path | str = sys.executable) -> str:
    """A Python for Spark's workers: C{machines} on the machines of the cluster, C{driver} on the driver's."""
    program = place() / f"python-{name}"
    program.write_text(_SWITCH % (shlex.quote(str(machines)), shlex.quote(str(driver))))
    program.chmod(0o755)
    return str(program)


def job_alone() -> str:
    """The file of the job in a directory where no other module is found."""
    return shutil.copy(_JOB, place() / "job.py")


def run_job(
    name: str, command: Sequence[str], data: Sequence[str], *parts: str, **more: str
) -> Found:
    """
    Run a job to its end.

    @param command: a program and its arguments, to which those of L{tests.spark.cluster_job} are appended.
    @param more: of its environment.
    @return: its findings.
    @raise ChildError: it does not end in time.
    """
    result = place() / f"{name}.json"
    job = Child(
        name, [*command, str(result), *data, *parts], log_path=place() / f"{name}.log",
        environment={**environment(), **more},
    )
    job.start()
    status = job.wait(seconds=JOB_S)
    if status != 0:
        raise ChildError(f"{name} ended with status {status}\n{job.log_tail(60)}")
    found: Found = json.loads(result.read_text())
    return found


def machine() -> str:
    """The name of this machine in messages."""
    return socket.gethostname()
