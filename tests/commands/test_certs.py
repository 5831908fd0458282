# -*- test-case-name: tests.commands.test_certs -*-
"""C{dledger certs}: keys for a first secured group."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography import x509

from dledger.base.rights import ROLE_URI
from dledger.base.tls.keys import TlsKeys
from dledger.base.tls_files import TlsFiles
from tests.commands.fakes import CliCase


class CertsTests(CliCase):
    """A directory of files."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.mktemp())

    def files(self, name: str) -> TlsFiles:
        """The files of C{name}."""
        return TlsFiles(
            certificate=str(self.directory / f"{name}.pem"), key=str(self.directory / f"{name}.key"),
            authority=str(self.directory / "authority.pem"),
        )

    def names(self, name: str) -> tuple[list[str], list[str]]:
        """DNS names and URIs of a certificate."""
        certificate = x509.load_pem_x509_certificate((self.directory / f"{name}.pem").read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return (found.get_values_for_type(x509.DNSName),
                found.get_values_for_type(x509.UniformResourceIdentifier))

    def test_first_group(self) -> None:
        """An authority, members and clients; all load, and keys are their owner's."""
        words = ("--members", "n0-h:1;n1-h:2", "--client", "app=append")
        done = self.run_cli("certs", str(self.directory), *words)
        self.assertExit(done, 0, "a new authority", "n0.pem: member n0", "app.pem: client, may append")
        for name in ("n0", "n1", "app"):
            TlsKeys(self.files(name))
        self.assertEqual(self.names("n1"), (["n1"], []))
        self.assertEqual(self.names("app"), ([], [ROLE_URI + "append"]))
        modes = {path.name: path.stat().st_mode & 0o777 for path in self.directory.glob("*.key")}
        self.assertEqual(set(modes.values()), {0o600}, modes)
        self.assertFalse(list(self.directory.glob("*.new")))

    def test_one_more(self) -> None:
        """By the same authority; nothing that is there changes."""
        self.run_cli("certs", str(self.directory), "--members", "n0,n1")
        before = {path: path.read_bytes() for path in self.directory.iterdir()}
        self.assertExit(self.run_cli("certs", str(self.directory), "--client", "ops=admin"), 0, "may admin")
        TlsKeys(self.files("ops"))
        self.assertEqual({path: path.read_bytes() for path in before}, before)

    def test_renew(self) -> None:
        """Only on request; the old ones are kept."""
        self.run_cli("certs", str(self.directory), "--members", "n0")
        before = (self.directory / "n0.pem").read_bytes()
        done = self.run_cli("certs", str(self.directory), "--members", "n0")
        self.assertExit(done, 1, "has certificates of n0 already: --renew replaces them")
        self.assertEqual((self.directory / "n0.pem").read_bytes(), before)
        self.assertExit(self.run_cli("certs", str(self.directory), "--members", "n0", "--renew"), 0)
        self.assertNotEqual((self.directory / "n0.pem").read_bytes(), before)
        self.assertEqual((self.directory / "n0.pem.old").read_bytes(), before)
        TlsKeys(self.files("n0"))

    def test_refusals(self) -> None:
        """What was wrong, and what is allowed."""
        for words, status, sentence in (
            ((), 64, "nothing to make: give --members"),
            (("--members", "../n0"), 64, "cannot be the name of a certificate"),
            (("--members", "n0-h"), 0, "member n0-h"),
            (("--members", "n0-h:x"), 64, "--members: "),
            (("--members", "authority"), 64, "cannot be the name of a certificate"),
            (("--client", "app"), 64, "write NAME=ROLE, with the role read, append or admin"),
            (("--client", "app=root"), 64, "write NAME=ROLE"),
            (("--client", "=read"), 64, "cannot be the name of a certificate"),
            (("--members", "n0", "--client", "n0=read"), 64, "'n0' is named twice"),
            (("--members", "n0", "--days", "0"), 64, "--days"),
        ):
            done = self.run_cli("certs", str(self.directory / str(len(words))), *words)
            self.assertExit(done, status, sentence)

    def test_half_an_authority(self) -> None:
        """It is not replaced."""
        self.run_cli("certs", str(self.directory), "--members", "n0")
        os.unlink(self.directory / "authority.key")
        self.assertExit(self.run_cli("certs", str(self.directory), "--members", "n1"), 1,
                        "authority.pem is there", "authority.key is not")
        (self.directory / "authority.key").write_text("nonsense")
        self.assertExit(self.run_cli("certs", str(self.directory), "--members", "n1"), 1, "authority.pem: ")
        self.assertFalse((self.directory / "n1.pem").exists())
