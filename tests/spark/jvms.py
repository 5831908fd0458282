# -*- test-case-name: tests.spark.test_session -*-
"""
Options of the JVMs of these tests, which live for seconds.

    python -m tests.spark.jvms

makes an archive of the classes that a session loads, unless there is one. A JVM that has one maps it instead
of parsing jars: a session starts in 6 seconds instead of 9. The JVM ignores an archive of another JVM, or of
other jars. Source: application class-data sharing, C{-XX:ArchiveClassesAtExit} of JDK 13 and later.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
#: It starts a second faster and stays small.
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_SECONDS = 200
#: What is read and written of the classes that Spark's tests need, by a session that then ends in order.
_SESSION = """
import sys
from pyspark.sql import SparkSession
options, folder = sys.argv[1:]
session = (
    SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", options)
    .config("spark.driver.memory", "512m").config("spark.log.level", "OFF")
    .config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", folder).getOrCreate()
)
session.range(10).selectExpr("id", "string(id) AS text").write.parquet(f"{folder}/table")
frame = session.readStream.schema("id LONG, text STRING").parquet(f"{folder}/table").groupBy("text").count()
query = (
    frame.writeStream.format("memory").queryName("counts").outputMode("complete")
    .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
session.sql("SELECT sum(count) FROM counts ORDER BY 1").toPandas()
process = session.sparkContext._gateway.proc
session.stop()
process.stdin.close()
process.wait()
"""


def archive() -> Path:
    """Where the archive of this machine's JVM and of this PySpark is, or would be."""
    java = os.path.realpath(shutil.which("java") or "java")
    age = int(os.stat(java).st_mtime) if os.path.exists(java) else 0
    return ROOT / ".jars" / f"spark-{pyspark.__version__}-{age:x}.jsa"


def options() -> str:
    """For every JVM."""
    found = archive()
    return f"{SMALL} -XX:SharedArchiveFile={found} -Xlog:cds=off" if found.exists() else SMALL


def make() -> None:
    """
    Make the archive.

    @raise subprocess.SubprocessError: the session did not end well; tests run without an archive, slower.
    """
    found = archive()
    found.parent.mkdir(exist_ok=True)
    fresh = found.with_name(f"{found.name}.{os.getpid()}")
    words = f"{SMALL} -XX:ArchiveClassesAtExit={fresh} -Xlog:disable -Xlog:all=off"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-c", _SESSION, words, folder], check=True, timeout=_SECONDS,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )
    fresh.rename(found)


if __name__ == "__main__" and not archive().exists():
    make()
