# -*- test-case-name: tests.commands.test_certs -*-
"""C{dledger certs}: keys for a first secured group."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dledger.base.tls.certificates import make_authority
from dledger.base.tls.keys import TlsKeys
from dledger.values.rights import BROKER_URI, GROUP_URI, ROLE_URI, SLAVE_URI
from dledger.values.tls_files import TlsFiles
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

    def test_brokers(self) -> None:
        """Their certificates say so, and nothing else."""
        self.assertExit(self.run_cli("certs", str(self.directory), "--broker", "a", "--broker", "b"), 0,
                        "a.pem: broker a", "b.pem: broker b")
        self.assertEqual(self.names("a"), ([], [SLAVE_URI, BROKER_URI + "a"]))
        self.assertExit(self.run_cli("certs", str(self.directory), "--broker", "x=the name"), 0)
        self.assertEqual(self.names("x"), ([], [SLAVE_URI, BROKER_URI + "the%20name"]))
        for words in (
            ("--broker", "c", "--client", "c=read"), ("--broker", "c/d"), ("--broker", "authority"),
            ("--broker", "c", "--broker", "c=d"),
        ):
            self.assertExit(self.run_cli("certs", str(self.directory), *words), 64, words[1])

    def test_groups(self) -> None:
        """Members and clients of named groups; members that are brokers, too; brokers have no group."""
        words = ("--members", "n0", "--client", "app=read", "--broker", "b", "--group", "orders", "--group",
                 "a b", "--raft-broker", "bk")
        self.assertExit(self.run_cli("certs", str(self.directory), *words), 0)
        groups = [GROUP_URI + "orders", GROUP_URI + "a%20b"]
        self.assertEqual(self.names("n0"), (["n0"], [BROKER_URI + "bk", *groups]))
        self.assertEqual(self.names("app"), ([], [ROLE_URI + "read", *groups]))
        self.assertEqual(self.names("b"), ([], [SLAVE_URI, BROKER_URI + "b"]))

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
        self.assertExit(done, 1, "has files of n0 already: --renew replaces them")
        self.assertEqual((self.directory / "n0.pem").read_bytes(), before)
        self.assertExit(self.run_cli("certs", str(self.directory), "--members", "n0", "--renew"), 0)
        self.assertNotEqual((self.directory / "n0.pem").read_bytes(), before)
        self.assertEqual((self.directory / "n0.pem.old").read_bytes(), before)
        TlsKeys(self.files("n0"))

    def test_renewed_for_less(self) -> None:
        """A group, a broker or a host that would be lost is named, and no file is replaced."""
        options = ("--members", "n0;n1", "--group", "orders", "--raft-broker", "broker-a", "--host",
                   "n1=10.0.0.2")
        self.assertExit(self.run_cli("certs", str(self.directory), *options), 0)
        before = {path: path.read_bytes() for path in self.directory.iterdir()}
        for left_out, lost in ((2, "dledger:group:orders"), (4, "dledger:broker:broker-a"), (6, "10.0.0.2")):
            given = [*options[:left_out], *options[left_out + 2 :], "--renew"]
            done = self.run_cli("certs", str(self.directory), *given)
            self.assertExit(done, 1, f".pem has {lost}, and a new one would not")
        self.assertEqual({path: path.read_bytes() for path in self.directory.iterdir()}, before)
        self.assertExit(self.run_cli("certs", str(self.directory), *options, "--renew"), 0)
        self.assertExit(self.run_cli("certs", str(self.directory), "--client", "app=read"), 0)
        self.assertExit(self.run_cli("certs", str(self.directory), "--client", "app=append", "--renew"), 0)

    def test_three_generations(self) -> None:
        """None of them replaces an older one; a key and its certificate have the same suffix."""
        kept = []
        for _ in range(3):
            self.run_cli("certs", str(self.directory), "--members", "n0", "--renew")
            kept.append([(self.directory / f"n0.{kind}").read_bytes() for kind in ("key", "pem")])
        for suffix, pair in zip((".old", ".old2", ""), kept, strict=True):
            found = [(self.directory / f"n0.{kind}{suffix}").read_bytes() for kind in ("key", "pem")]
            self.assertEqual(found, pair, suffix)

    def test_only_a_key(self) -> None:
        """A key without its certificate is not replaced unasked either."""
        self.directory.mkdir()
        (self.directory / "n0.key").write_text("mine")
        done = self.run_cli("certs", str(self.directory), "--members", "n0")
        self.assertExit(done, 1, "has files of n0 already")
        self.assertEqual((self.directory / "n0.key").read_text(), "mine")

    def test_full_disk(self) -> None:
        """Whichever write fails: one sentence, the old pair is there, and nothing half-written."""
        self.run_cli("certs", str(self.directory), "--members", "n0")
        before = {path.name: path.read_bytes() for path in self.directory.iterdir()}
        for failing in (1, 2):
            outcomes: list[Any] = [None] * (failing - 1) + [OSError(errno.ENOSPC, "No space left on device")]
            self.patch(os, "fsync", Mock(side_effect=outcomes))
            done = self.run_cli("certs", str(self.directory), "--members", "n0", "--renew")
            self.assertExit(done, 1, f"{self.directory}: No space left on device")
            self.assertEqual({path.name: path.read_bytes() for path in self.directory.iterdir()}, before)

    def test_rest_of_a_killed_run(self) -> None:
        """A key is never written into a file that others may read, or to the target of a link."""
        self.directory.mkdir()
        elsewhere = self.directory / "elsewhere"
        elsewhere.write_text("mine")
        (self.directory / "n0.key.new").symlink_to(elsewhere)
        (self.directory / "app.key.new").write_text("old")
        (self.directory / "app.key.new").chmod(0o666)
        words = ("--members", "n0", "--client", "app=read")
        self.assertExit(self.run_cli("certs", str(self.directory), *words), 0)
        self.assertEqual(elsewhere.read_text(), "mine")
        for name in ("n0", "app"):
            path = self.directory / f"{name}.key"
            self.assertEqual((path.stat().st_mode & 0o777, path.is_symlink()), (0o600, False))

    def test_no_directory(self) -> None:
        """One sentence with its path."""
        self.directory.write_text("")
        done = self.run_cli("certs", str(self.directory / "keys"), "--members", "n0")
        self.assertExit(done, 1, f"{self.directory / 'keys'}: Not a directory")

    def test_end_of_the_authority(self) -> None:
        """No certificate outlives it; nothing is made when it is over."""
        self.directory.mkdir()
        for days in (5, -1):
            made = make_authority("mine", days=days)
            (self.directory / "authority.pem").write_bytes(made.certificate)
            (self.directory / "authority.key").write_bytes(made.key)
            done = self.run_cli("certs", str(self.directory), "--members", f"n{days + 1}")
            if days > 0:
                self.assertExit(done, 0)
                ends = x509.load_pem_x509_certificate((self.directory / "n6.pem").read_bytes())
                mine = x509.load_pem_x509_certificate(made.certificate)
                self.assertEqual(ends.not_valid_after_utc, mine.not_valid_after_utc)
            else:
                self.assertExit(done, 1, "the authority ended on")
                self.assertFalse((self.directory / "n0.pem").exists())

    def test_key_of_another_authority(self) -> None:
        """It signs nothing; of two certificates in the file, that of the key does."""
        mine, other = make_authority("mine", days=9), make_authority("other", days=9)
        self.directory.mkdir()
        (self.directory / "authority.pem").write_bytes(other.certificate)
        (self.directory / "authority.key").write_bytes(mine.key)
        done = self.run_cli("certs", str(self.directory), "--members", "n0")
        self.assertExit(done, 1, "the key of the authority belongs to another certificate")
        (self.directory / "authority.pem").write_bytes(other.certificate + mine.certificate)
        self.assertExit(self.run_cli("certs", str(self.directory), "--members", "n0"), 0)
        TlsKeys(self.files("n0"))

    def test_locked_authority(self) -> None:
        """A key with a password is a sentence."""
        self.directory.mkdir()
        made = make_authority("mine", days=9)
        key: Any = serialization.load_pem_private_key(made.key, None)
        (self.directory / "authority.pem").write_bytes(made.certificate)
        (self.directory / "authority.key").write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        ))
        done = self.run_cli("certs", str(self.directory), "--members", "n0")
        self.assertExit(done, 1, "its key cannot be read (Password was not given")

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
