# -*- test-case-name: tests.interop.test_jvms -*-
"""Archives of classes: which names are in one, and that a JVM without one runs without."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from twisted.trial.unittest import SynchronousTestCase

from tests.interop import jvms

_ONE = """# NOTE: Do not modify this file.
#
java/lang/Object id: 0
java/lang/String id: 1
@lambda-proxy java/lang/String run
org/example/Own id: 9 super: 0 source: file:/x.jar
"""
_OTHER = "java/lang/String id: 4\norg/apache/Broker id: 5\n"


class NamesTests(SynchronousTestCase):
    """What JVMs write of their classes."""

    def test_names(self) -> None:
        """Each class once, without remarks, lambdas and classes of own loaders."""
        self.assertEqual(
            jvms.names_in([_ONE, _OTHER]), ["java/lang/Object", "java/lang/String", "org/apache/Broker"]
        )

    def test_options(self) -> None:
        """A JVM is informed of an archive that is there; each class path has its own."""
        with TemporaryDirectory() as name:
            self.patch(jvms, "JARS", Path(name))
            self.assertEqual(jvms.options("a.jar"), [])
            jvms.archive_of("a.jar").touch()
            self.assertIn(f"-XX:SharedArchiveFile={jvms.archive_of('a.jar')}", jvms.options("a.jar"))
            self.assertEqual(jvms.options("b.jar"), [])
