# -*- test-case-name: tests.spark.test_member_tls -*-
"""Reading from members by TLS: who is believed, and trouble in words."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export.engine import source_options
from dledger.spark.formats.log import ReadError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import ScanOptions
from dledger.spark.ledger.members import MembersLog
from dledger.spark.scans.scan import Scan
from dledger.values.rights import ClientRole
from dledger.values.tls_files import TlsFiles
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import PullRequest, PullResponse, Request, Response
from tests.base.keys import KeyRoom
from tests.spark.ledgers import mixed_bodies, scanned
from tests.spark.members import FakeMember, records_of
from tests.spark.test_members import rows_of


class TlsReadCase(SynchronousTestCase):
    """One authority; members and readers with keys of it, and without."""

    def setUp(self) -> None:
        self.room = KeyRoom(Path(self.mktemp()))
        self.records = records_of(mixed_bodies(300, seed=2))
        self.rows = rows_of(self.records)
        self.reader = self.room.client("reader", ClientRole.READ)
        self.members: dict[str, FakeMember] = {}

    def begin(self, *, token: str = "", **keys: TlsFiles | None) -> None:
        """Members with these keys; the first leads."""
        for member_id, tls in keys.items():
            member = FakeMember(member_id, self.records, tls=tls, token=token)
            member.role = "follower" if self.members else "leader"
            self.addCleanup(member.close)
            self.members[member_id] = member
        peers = {member_id: member.address for member_id, member in self.members.items()}
        for member in self.members.values():
            member.peers = peers

    def options(self, files: TlsFiles | None = None, **more: object) -> dict[str, object]:
        """Options of a reader with these keys."""
        files = files or self.reader
        addresses = ";".join(f"{member_id}-{member.address}" for member_id, member in self.members.items())
        return {"bootstrap": addresses, "tlsCertificate": files.certificate, "tlsKey": files.key,
                "tlsAuthority": files.authority, "requestTimeoutMs": 20_000, **more}

    def refused(self, options: dict[str, object]) -> str:
        """Why nothing is read; no member was asked for an entry."""
        error = self.assertRaises(ReadError, scanned, options)
        self.assertEqual([member.pulls for member in self.members.values() if member.pulls], [])
        return str(error)


class TlsReadTests(TlsReadCase):
    """Certificates at both ends."""

    def test_value_by_value(self) -> None:
        """All columns, from a group of three."""
        self.begin(**{name: self.room.member(name) for name in ("n0", "n1", "n2")})
        for more in ({}, {"fetchBytes": 900}, {"minPartitions": 5}):
            self.assertEqual(scanned(self.options(**more)), self.rows)

    def test_plain_members(self) -> None:
        """A member that does without TLS, named by its id."""
        self.begin(n0=self.room.member("n0"), n1=self.room.member("n1"), n2=None)
        self.assertEqual(scanned(self.options(tlsPlainMembers="n2")), self.rows)

    def test_another_member(self) -> None:
        """A sound certificate of another member proves nothing: nothing is sent."""
        for shown in ("n1", "n00", "N0", "n0.example", "*"):
            with self.subTest(shown=shown):
                self.members.clear()
                self.begin(n0=self.room.member(shown))
                self.assertIn(f"its certificate is for {shown!r}, not for 'n0'", self.refused(self.options()))

    def test_another_group(self) -> None:
        """The member of that id in another group under the same authority is another one."""
        self.begin(n0=self.room.member("n0", groups=["default", "more"]))
        self.assertEqual(scanned(self.options()), self.rows)
        self.members.clear()
        self.begin(n0=self.room.member("n0", groups=["another"]))
        self.assertIn("its certificate is not for group 'default'", self.refused(self.options()))

    def test_client_in_the_place_of_a_member(self) -> None:
        """The keys of a client are no member's."""
        self.begin(n0=self.room.client("n0", ClientRole.ADMIN))
        self.assertIn("its certificate is for no member", self.refused(self.options()))

    def test_another_authority(self) -> None:
        """On either side."""
        stranger = KeyRoom(Path(self.mktemp()))
        self.begin(n0=stranger.member("n0"))
        self.assertIn(f"{self.reader.authority} has not signed its certificate",
                      self.refused(self.options()))
        self.members.clear()
        self.begin(n0=self.room.member("n0"))
        mine = stranger.client("reader", ClientRole.READ)
        keys = TlsFiles(certificate=mine.certificate, key=mine.key, authority=self.reader.authority)
        self.assertIn("n0: ", self.refused(self.options(keys, requestTimeoutMs=300)))

    def test_one_side_only(self) -> None:
        """A reader without TLS hears which option is missing; a member without it answers no handshake."""
        self.begin(n0=self.room.member("n0"))
        plain = {"bootstrap": f"n0-{self.members['n0'].address}", "requestTimeoutMs": 300}
        self.assertIn("a group with TLS needs the option tlsCertificate", self.refused(plain))
        self.members.clear()
        self.begin(n0=None)
        self.assertIn("no TLS connection to ", self.refused(self.options(requestTimeoutMs=300)))

    def test_no_role(self) -> None:
        """FORBIDDEN is final: it is not asked again until the time is over."""
        def answer(request: Request) -> Response:
            if isinstance(request, PullRequest):
                return PullResponse(code=ResponseCode.FORBIDDEN)
            return self.members["n0"].sound_answer(request)

        self.begin(n0=self.room.member("n0"))
        self.members["n0"].answer = answer
        error = self.assertRaises(ReadError, scanned, self.options(requestTimeoutMs=3_600_000))
        self.assertIn("FORBIDDEN, certificate and token have no role that may read", str(error))

    def test_exchanged_keys(self) -> None:
        """A log that is open goes on with new files."""
        self.begin(n0=self.room.member("n0"))
        scan = Scan.of({name: str(value) for name, value in self.options().items()})
        log = scan.log()
        assert isinstance(log, MembersLog)
        self.addCleanup(log.close)
        log.extent()
        other = KeyRoom(Path(self.mktemp()))
        self.members["n0"].close()
        again = FakeMember("n0", self.records, tls=other.member("n0"))
        self.addCleanup(again.close)
        log._addresses = {"n0": again.address}
        made = other.client("reader", ClientRole.READ)
        for new, old in ((made.certificate, self.reader.certificate), (made.key, self.reader.key),
                         (made.authority, self.reader.authority)):
            os.replace(new, old)
        self.assertEqual(log.extent().end, len(self.records))


class TokenTests(TlsReadCase):
    """A token instead of a certificate, or besides."""

    def setUp(self) -> None:
        super().setUp()
        self.path = Path(self.mktemp())
        self.path.write_text("secret\n")

    def with_token(self, **more: object) -> dict[str, object]:
        """Options of a reader that has a token and believes the authority."""
        options = {**self.options(tokenFile=str(self.path)), **more}
        return {name: value for name, value in options.items()
                if name not in ("tlsCertificate", "tlsKey") or name in more}

    def test_shown(self) -> None:
        """On each connection, by TLS; plain on this machine."""
        for tls in (self.room.member("n0"), None):
            self.members.clear()
            self.begin(token="secret", n0=tls)
            options = self.with_token()
            if tls is None:
                del options["tlsAuthority"]
            self.assertEqual(scanned(options), self.rows)
            shown = self.members["n0"].shown
            self.assertTrue(shown and set(shown) == {"secret"})

    def test_wrong(self) -> None:
        """Refused at once; the words have the file, not the token."""
        self.begin(token="other", n0=self.room.member("n0"))
        said = self.refused(self.with_token())
        self.assertIn(f"does not know the token of tokenFile={os.path.abspath(self.path)}", said)
        self.assertNotIn("secret", said)

    def test_no_token_there(self) -> None:
        """Missing, or of another kind."""
        self.begin(token="secret", n0=self.room.member("n0"))
        for text, words in (("two words", "write the token into it"), (None, "No such file")):
            self.path.write_text(text) if text is not None else self.path.unlink()
            said = self.refused(self.with_token())
            self.assertIn(words, said)
            self.assertIn("on machine", said)

    def test_other_machines(self) -> None:
        """Not without TLS."""
        with self.assertRaises(ReadError) as caught:
            scanned({"bootstrap": "n0-192.0.2.1:1", "tokenFile": str(self.path), "requestTimeoutMs": 1000})
        self.assertIn("the token is not shown to 192.0.2.1:1 without TLS", str(caught.exception))

    def test_options(self) -> None:
        """With members only; its path is made absolute, and the command line's is taken."""
        error = self.assertRaises(OptionError, Scan.of, {"path": "/tmp", "tokenFile": "x"})
        self.assertIn("option tokenFile belongs to bootstrap", str(error))
        found = Scan.of({"bootstrap": "n0-127.0.0.1:1", "tokenFile": os.path.relpath(self.path)}).options
        self.assertEqual((found.token_file, found.tls_key), (os.path.abspath(self.path), ""))
        options = ScanOptions.of(source_options("n0-127.0.0.1:1", "default", None, "a.token"))
        self.assertEqual(options.token_file, "a.token")


class TlsOptionTests(SynchronousTestCase):
    """Wrong options and files end the query before a member is asked."""

    def setUp(self) -> None:
        self.room = KeyRoom(Path(self.mktemp()))
        self.files = self.room.client("reader", ClientRole.READ)

    def wrong(self, **changed: str | None) -> str:
        """What is said about the options of a reader with these changes."""
        given = {"bootstrap": "n0-127.0.0.1:1", "tlsCertificate": self.files.certificate,
                 "tlsKey": self.files.key, "tlsAuthority": self.files.authority, **changed}
        options = {name: value for name, value in given.items() if value is not None}
        return str(self.assertRaises(OptionError, Scan.of, options))

    def write(self, name: str, content: bytes) -> str:
        """A file."""
        path = Path(self.mktemp() + name)
        path.write_bytes(content)
        return str(path)

    def test_combinations(self) -> None:
        """All three, and only with members."""
        self.assertIn("TLS needs three files; missing: tlsKey", self.wrong(tlsKey=None))
        self.assertIn("missing: tlsCertificate, tlsKey",
                      self.wrong(tlsKey=None, tlsCertificate=None))
        self.assertIn("option tlsCertificate belongs to bootstrap", self.wrong(bootstrap=None, path="/tmp"))
        self.assertIn("tlsPlainMembers names the members that do without TLS", self.wrong(
            tlsCertificate=None, tlsKey=None, tlsAuthority=None, tlsPlainMembers="n1"))

    def test_files(self) -> None:
        """Each file missing, not sound, or not of the other."""
        other = self.room.client("other", ClientRole.READ)
        key = serialization.load_pem_private_key(Path(self.files.key).read_bytes(), None)
        locked = self.write("locked", key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        ))
        empty = self.write("empty", b"")
        for name, path, words in (
            ("tlsCertificate", "/nowhere/a.pem", "/nowhere/a.pem: No such file"),
            ("tlsKey", "/nowhere/a.key", "/nowhere/a.key: No such file"),
            ("tlsAuthority", "/nowhere/b.pem", "/nowhere/b.pem: No such file"),
            ("tlsCertificate", empty, "write PEM files of a certificate and of its key"),
            ("tlsKey", empty, "write PEM files of a certificate and of its key"),
            ("tlsAuthority", empty, "write a PEM file of certificates"),
            ("tlsKey", other.key, "KEY_VALUES_MISMATCH"),
            ("tlsKey", locked, "the key has a password"),
        ):
            with self.subTest(name=name, path=path):
                said = self.wrong(**{name: path})
                self.assertIn(words, said)
                self.assertIn(path, said)

    def test_paths(self) -> None:
        """Tasks may have another working directory."""
        relative = {name: os.path.relpath(path) for name, path in (
            ("tlsCertificate", self.files.certificate), ("tlsKey", self.files.key),
            ("tlsAuthority", self.files.authority))}
        options = Scan.of({"bootstrap": "n0-127.0.0.1:1", **relative}).options
        for path in (options.tls_certificate, options.tls_key, options.tls_authority):
            self.assertTrue(os.path.isabs(path) and os.path.exists(path), path)

    def test_command_line(self) -> None:
        """The keys of C{dledger --tls-...} are those of C{dledger export}."""
        found = ScanOptions.of(source_options("n0-127.0.0.1:1", "default", self.files))
        self.assertEqual(found.tls, self.files)
        os.makedirs("a-directory", exist_ok=True)
        self.assertEqual(source_options("a-directory", "default", self.files), {"path": "a-directory"})
