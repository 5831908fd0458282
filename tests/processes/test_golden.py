# -*- test-case-name: tests.processes.test_golden -*-
"""Every directory that a release wrote is opened by this version, with all that is in it."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.storage.manifests.document import encode_document
from tests.golden.make import (
    CLI,
    CONSUMERS,
    HERE,
    MACHINE,
    MEMBER_OPTIONS,
    QUERY_OFFSET,
    READ,
    TOPIC,
    digest_of,
)
from tests.processes.brokers import Broker, Remoting, messages_of
from tests.processes.children import free_ports, free_triple
from tests.processes.members import ROOT, Member, ended_well
from tests.processes.raft_brokers import RaftTrio

RELEASES = sorted(path.parent for path in HERE.glob("*/expected.json"))


#: The number of a later version.
LATER = 97


def made_later(directory: Path) -> dict[str, bytes]:
    """
    Give the files of a member, an archive or a backup the number of a later version.

    @return: as of L{contents_of}.
    """
    for path in directory.rglob("identity"):
        content = bytearray(path.read_bytes())
        for slot in (0, len(content) // 2):
            content[slot + 4 : slot + 8] = LATER.to_bytes(4, "big")
        path.write_bytes(content)
    for path in directory.rglob("*.json"):
        document = json.loads(path.read_text())
        if "archive" in document:
            path.write_bytes(encode_document(document["format"], LATER, "archive", document["archive"]))
    return contents_of(directory)


def contents_of(directory: Path) -> dict[str, bytes]:
    """All files except the locks, by their paths."""
    return {str(path): path.read_bytes() for path in directory.rglob("*")
            if path.is_file() and path.name != "lock"}


class GoldenTests(SynchronousTestCase):
    """The directories of one release after the other."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)

    def unpacked(self, release: Path, kind: str) -> tuple[Path, Any]:
        """A directory, and what all of its release have."""
        with tarfile.open(release / f"{kind}.tar.xz") as packed:
            packed.extractall(self.directory / release.name, filter="data")
        return self.directory / release.name / kind, json.loads((release / "expected.json").read_text())

    def cli(self, *words: str) -> str:
        """The output of a command, which is done."""
        done = subprocess.run([sys.executable, "-c", CLI, *words], capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def check_member(self, directory: Path, expected: Any, *, options: dict[str, object]) -> None:
        """A member starts, and has the entries and the state of the group and of its machine."""
        (port,) = free_ports(1)
        member = Member("n0", {"n0": f"127.0.0.1:{port}"}, directory, options=options, extra=MACHINE)
        self.addCleanup(member.kill)
        member.start()
        with dledger.connect(f"n0-127.0.0.1:{port}", timeout=60.0) as log:
            indexes = expected["indexes"]
            found = {entry.index: entry.body for entry in log.tail(0, follow=False)
                     if entry.index <= indexes[-1]}
            self.assertEqual(([*found], digest_of(found)), (indexes, expected["digest"]))
            last = log.last_sequence("golden")
            self.assertEqual(last and last.sequence, expected["last_sequence"])
            self.assertEqual(log.query(b"").decode(), expected["state"])
            with log.reader("golden", follow=False) as reader:
                self.assertEqual(next(iter(reader)).index, indexes[READ])
            self.assertGreater(log.append(b"later").index, indexes[-1])
        self.assertTrue(ended_well(member.stop(seconds=60)))

    def test_members(self) -> None:
        """A member's own directory."""
        self.assertTrue(RELEASES)
        for release in RELEASES:
            directory, expected = self.unpacked(release, "member")
            self.cli("verify", str(directory / "dledger-n0"))
            self.check_member(directory, expected["member"], options=MEMBER_OPTIONS)

    def test_backups(self) -> None:
        """Members are restored from its backup and its archive."""
        for release in RELEASES:
            for kind in ("backup", "archive"):
                source, expected = self.unpacked(release, kind)
                target = self.directory / f"{release.name}-{kind}-restored"
                sizes = [word for name, value in MEMBER_OPTIONS.items() if name.startswith("mapped")
                         for word in ("--set", f"{name}={value}")]
                self.cli("backup", "--verify", str(source))
                self.cli("restore", str(source), "--node-id", "n0", "--peers", "n0-127.0.0.1:1", "--store",
                         str(target), *sizes)
                if kind == "backup":  # an archive has closed segments only
                    self.check_member(target, expected["member"], options=MEMBER_OPTIONS)

    def check_broker(self, connection: Remoting, expected: Any) -> None:
        """All messages are in their queues, and consumers go on where they were."""
        for queue_id in (0, 1):
            bodies = [one.body.decode() for one in messages_of(connection.pull(TOPIC, queue_id, 0))]
            self.assertEqual(bodies, [body for queue, body in expected["messages"] if queue == queue_id])
        answer = connection.ask(QUERY_OFFSET, {"consumerGroup": CONSUMERS, "topic": TOPIC, "queueId": "0"})
        self.assertEqual(answer.ext_fields["offset"], str(expected["consumed"]))
        connection.close()

    def test_brokers(self) -> None:
        """A master's store, and one on a raft log."""
        for release in RELEASES:
            directory, expected = self.unpacked(release, "broker")
            self.cli("verify", str(directory))
            broker = Broker("broker", directory.parent, role="ASYNC_MASTER", port=free_triple())
            self.addCleanup(broker.kill)
            broker.start()
            broker.wait_started()
            self.check_broker(Remoting(broker.address), expected["broker"])
            broker.end()
            directory, expected = self.unpacked(release, "raft-broker")
            home = self.directory / f"{release.name}-trio" / "n0"
            home.mkdir(parents=True)
            directory.rename(home / "store")
            trio = RaftTrio(home.parent, size=1)
            self.addCleanup(trio.kill)
            trio.start()
            self.check_broker(trio.brokers["n0"].connect(), expected["broker"])
            self.assertTrue(all(map(ended_well, trio.stop().values())))

    def check_refused(self, directory: Path, contents: dict[str, bytes], *command: str) -> None:
        """A program ends, and says which number it found, and which it reads; the files stay."""
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
        self.assertNotEqual(done.returncode, 0, command)
        said = done.stdout + done.stderr
        self.assertRegex(said, rf"version {LATER}, (but )?this program reads (version )?1\b")
        self.assertNotIn("Traceback", said)
        self.assertEqual(contents_of(directory), contents)

    def test_later_numbers(self) -> None:
        """What a later version wrote is refused."""
        for release in RELEASES:
            sound = self.unpacked(release, "member")[0].rename(self.directory / f"{release.name}-sound")
            for kind in ("member", "archive", "backup"):
                directory, _ = self.unpacked(release, kind)
                contents = made_later(directory)
                new = self.directory / f"{release.name}-{kind}-new"
                cli = (sys.executable, "-c", CLI)
                if kind == "member":
                    member = Member("n0", {"n0": "127.0.0.1:1"}, directory, options=MEMBER_OPTIONS)
                    self.check_refused(directory, contents, *member.command)
                    self.check_refused(directory, contents, *cli, "verify", str(directory / "dledger-n0"))
                    continue
                self.check_refused(directory, contents, *cli, "restore", str(directory), "--node-id", "n0",
                                   "--peers", "n0-127.0.0.1:1", "--store", str(new))
                self.assertFalse(new.exists())
                self.check_refused(directory, contents, *cli, kind, str(sound / "dledger-n0"), str(directory))
                self.check_refused(directory, contents, *cli, kind, "--verify", str(directory))
