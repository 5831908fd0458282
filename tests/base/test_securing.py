# -*- test-case-name: tests.base.test_securing -*-
"""TLS files in a configuration, and what is said when something is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.tls.securing import MembersDialling, dialling, secured
from dledger.values.tls_files import TlsFiles, tls_files
from tests.base.keys import KeyRoom


class SecuringTests(SynchronousTestCase):
    """All three files, or none."""

    def test_files(self) -> None:
        """No file: no TLS. Some files: a sentence that names those that are missing."""
        self.assertIs(tls_files(certificate="", key="", authority=""), None)
        self.assertIs(secured(None), None)
        three = {"certificate": "a", "key": "b", "authority": "c"}
        self.assertEqual(tls_files(**three), TlsFiles(**three))
        error = self.assertRaises(ValueError, tls_files, certificate="a", key="", authority="")
        self.assertEqual(str(error), "TLS needs three files; missing: tls_key, tls_authority")

    def test_loaded(self) -> None:
        """Keys come from the files."""
        files = KeyRoom(Path(self.mktemp())).member("n0")
        keys = secured(files)
        assert keys is not None
        self.assertEqual(keys.files, files)
        self.assertIsNot(dialling(files), None)

    def test_plain_members(self) -> None:
        """Members that do without TLS are reached without."""
        keys = secured(KeyRoom(Path(self.mktemp())).member("n0"))
        assert keys is not None
        plain: Any = object()
        dialling = MembersDialling(keys, ("n1",))
        self.assertIs(dialling.dial(plain, "n1"), plain)
        self.assertIsNot(dialling.dial(plain, "n2"), plain)

    def test_missing_package(self) -> None:
        """The sentence says what to install."""
        there = sys.modules.pop("dledger.base.tls.keys", None)
        self.addCleanup(sys.modules.update, {"dledger.base.tls.keys": there} if there else {})
        self.addCleanup(sys.modules.pop, "dledger.base.tls.keys", None)
        sys.modules["dledger.base.tls.keys"] = None  # type: ignore[assignment]
        error = self.assertRaises(ValueError, secured, TlsFiles(certificate="a", key="b", authority="c"))
        self.assertIn("pip install 'dledger[tls]'", str(error))
