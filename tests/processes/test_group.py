# -*- test-case-name: tests.processes.test_group -*-
"""Real members: they elect, replicate, survive the death of one, and stop cleanly."""

from __future__ import annotations

import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.disk.disk import OsDisk
from dledger.base.disk.hints import Hints
from dledger.client.errors import UnknownOutcome
from dledger.storage.files.hole_list import HoleList
from dledger.storage.start.verify import verify_directory
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.entry import bodies_of
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    PullResponse,
)
from tests.processes.asking import Asker, NoAnswer, ask
from tests.processes.children import free_ports
from tests.processes.ledgers import assert_identical, read_records
from tests.processes.members import Group, Member, ended_well

FILES = {"mapped_file_size_for_entry_data": 1 << 16, "mapped_file_size_for_entry_index": 32 * 256}


class GroupCase(SynchronousTestCase):
    """Members of ours as processes."""

    def group(self, *, size: int = 3, **options: object) -> Group:
        """A started group that is ended after the test."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        group = Group(self.directory, size=size, options={**FILES, **options})
        self.addCleanup(group.kill)
        group.start()
        return group

    def stop_and_compare(self, group: Group) -> list[bytes]:
        """Stop all members cleanly; their files must be equal and sound. @return: the bodies."""
        end_index = group.wait_settled()
        statuses = group.stop()
        self.assertTrue(all(ended_well(status) for status in statuses.values()), statuses)
        paths = [member.ledger_path for member in group.members.values()]
        assert_identical(paths, end_index)
        for path in paths:
            self.assertEqual(verify_directory(OsDisk(), str(path)).findings, [])
        return [record.body for record in read_records(paths[0]) if record.body]


class GroupTests(GroupCase):
    """They elect, replicate, survive the death of one, and stop cleanly."""

    def test_both_wires(self) -> None:
        """Requests of both formats on one port; each wire reads the other's appends."""
        group = self.group()
        leader_id = group.leader()
        address = group.peers[leader_id]
        indexes = {}
        for native, bodies in ((False, (b"remoting",)), (True, (b"native one", b"native two"))):
            request = AppendRequest(group="default", remote_id=leader_id, bodies=bodies)
            answer = ask(address, request, native=native)
            assert isinstance(answer, AppendResponse)
            self.assertEqual((answer.code, answer.count), (ResponseCode.SUCCESS, len(bodies)))
            indexes.update({answer.index + offset: body for offset, body in enumerate(bodies)})
        for index, body in indexes.items():
            for native in (False, True):
                request = GetRequest(group="default", remote_id=leader_id, begin_index=index)
                got = ask(address, request, native=native)
                assert isinstance(got, GetResponse) and got.entries is not None
                self.assertEqual(bodies_of(got.entries), [body])
        pulled = ask(address, PullRequest(group="default", remote_id=leader_id, begin_index=0), native=True)
        assert isinstance(pulled, PullResponse) and pulled.entries is not None
        self.assertEqual([body for body in bodies_of(pulled.entries) if body], list(indexes.values()))
        self.assertEqual(self.stop_and_compare(group), list(indexes.values()))

    def test_metadata(self) -> None:
        """Every member names leader, peers, its wire and its ledger."""
        group = self.group()
        leader_id = group.leader()
        for peer_id, address in group.peers.items():
            answer = ask(address, MetadataRequest(group="default", remote_id=peer_id))
            assert isinstance(answer, MetadataResponse)
            self.assertEqual((answer.leader_id, dict(answer.peers)), (leader_id, group.peers))
            self.assertEqual(answer.wire_version, WIRE_VERSION)
            self.assertEqual(answer.role, "leader" if peer_id == leader_id else "follower")

    def test_refusals(self) -> None:
        """A follower names the leader; requests for another group or member are refused."""
        group = self.group()
        leader_id = group.leader()
        follower_id = next(peer_id for peer_id in group.peers if peer_id != leader_id)
        address = group.peers[follower_id]
        refused = ask(address, AppendRequest(group="default", remote_id=follower_id, bodies=(b"a",)))
        self.assertEqual((refused.code, refused.leader_id), (ResponseCode.NOT_LEADER, leader_id))
        other = ask(address, MetadataRequest(group="another", remote_id=follower_id))
        self.assertEqual(other.code, ResponseCode.UNKNOWN_GROUP)
        stranger = ask(address, MetadataRequest(group="default", remote_id="n9"))
        self.assertEqual(stranger.code, ResponseCode.UNKNOWN_MEMBER)

    def test_garbage_ends_the_connection(self) -> None:
        """Bytes that are no frame cost the connection, not the member."""
        group = self.group(size=1)
        group.leader()
        with Asker(group.peers["n0"]) as asker:
            asker.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            self.assertRaises(NoAnswer, asker.ask, MetadataRequest(group="default", remote_id="n0"))
        self.assertEqual(group.leader(), "n0")

    def test_leader_dies(self) -> None:
        """Without its leader the group continues; the dead one comes back and holds the same."""
        group = self.group(flush_disk_type="sync")
        with dledger.connect(group.peers_text, timeout=90.0) as log:
            bodies = [b"before %d" % number for number in range(50)]
            log.append_many(bodies)
            leader_id = group.leader()
            group.members[leader_id].kill()
            bodies.append(b"after")
            self.assertGreater(log.append(b"after").term, 0)
            group.members[leader_id].start()
        self.assertEqual(self.stop_and_compare(group), bodies)

    def test_rotten_records(self) -> None:
        """Records rot at every member, each at another place: they serve, and get them back."""
        group = self.group(flush_disk_type="sync")
        bodies = [b"%d" % number * 20 for number in range(300)]
        with dledger.connect(group.peers_text, timeout=90.0) as log:
            log.append_many(bodies)
        group.wait_settled()
        group.stop()
        paths = [member.ledger_path for member in group.members.values()]
        for path, rotten in zip(paths, ((3, 200), (40, 41, 150), (100,)), strict=True):
            self.rot(path, rotten)
            self.assertNotEqual(verify_directory(OsDisk(), str(path)).findings, [])
        group.start()
        with dledger.connect(group.peers_text, timeout=90.0) as log:
            log.append(b"more")
            group.wait_until(lambda: not any(HoleList.recorded(Hints(OsDisk()), str(path)) for path in paths),
                             "the holes were not closed")
        self.assertEqual(self.stop_and_compare(group), [*bodies, b"more"])

    def rot(self, path: Path, indexes: tuple[int, ...]) -> None:
        """A bit of the body of each of these changes on the disk."""
        for record in list(read_records(path)):
            if record.index in indexes:
                base = record.pos - record.pos % (1 << 16)
                with open(path / "data" / f"{base:020d}", "r+b") as file:
                    file.seek(record.pos - base + 48)
                    first = file.read(1)
                    file.seek(record.pos - base + 48)
                    file.write(bytes([first[0] ^ 1]))

    def test_leader_stands_still(self) -> None:
        """
        A client of a stopped leader continues with the next one, long before its time limit for answers;
        the appends under way are unknown, and are in the log at most once.
        """
        group = self.group()
        with dledger.connect(group.peers_text, timeout=120.0, answer_timeout_s=90.0) as log:
            log.append(b"before")
            leader_id = group.leader()
            group.members[leader_id].pause()
            try:
                error = self.assertRaises(UnknownOutcome, log.append, b"under way")
                self.assertIn("no answer, and ", str(error))
                log.append(b"after")
            finally:
                group.members[leader_id].resume()
        bodies = self.stop_and_compare(group)
        self.assertEqual([body for body in bodies if body != b"under way"], [b"before", b"after"])
        self.assertLessEqual(bodies.count(b"under way"), 1)

    def test_no_majority(self) -> None:
        """One member of three acknowledges no append, and does not keep it either."""
        group = self.group()
        leader_id = group.leader()
        ask(group.peers[leader_id], AppendRequest(group="default", remote_id=leader_id, bodies=(b"kept",)))
        group.wait_settled()
        others = [peer_id for peer_id in group.peers if peer_id != leader_id]
        for peer_id in others:
            group.members[peer_id].kill()
        request = AppendRequest(group="default", remote_id=leader_id, bodies=(b"alone",))
        try:
            answer = ask(group.peers[leader_id], request, seconds=6.0)
            self.assertNotEqual(answer.code, ResponseCode.SUCCESS)
        except NoAnswer:
            pass
        group.members[leader_id].kill()
        for peer_id in others:
            group.members[peer_id].start()
        group.leader(among=tuple(others))
        with dledger.connect(group.peers_text, timeout=90.0) as log:
            log.append(b"without it")
        group.members[leader_id].start()
        self.assertEqual(self.stop_and_compare(group), [b"kept", b"without it"])

    def test_one_member(self) -> None:
        """A group of one member is a log, and keeps its entries over a restart."""
        group = self.group(size=1)
        with dledger.connect(group.peers_text) as log:
            log.append(b"a")
        self.assertEqual(group.stop(), {"n0": group.members["n0"].wait(seconds=1)})
        group.start()
        with dledger.connect(group.peers_text) as log:
            log.append(b"b")
            self.assertEqual([entry.body for entry in log.tail(0) if entry.body], [b"a", b"b"])

    def test_directory_is_locked(self) -> None:
        """A second process on the directory of a running member ends with an error, and does no harm."""
        group = self.group(size=1)
        group.leader()
        peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        files = {"mapped_file_size_for_entry_data": 1 << 16, "mapped_file_size_for_entry_index": 32 * 256}
        second = Member("n0", peers, group.members["n0"].directory, options=files)
        self.addCleanup(second.kill)
        second.start()
        self.assertFalse(ended_well(second.wait(seconds=120)))
        self.assertIn("lock", second.log_tail(60))
        with dledger.connect(group.peers_text) as log:
            log.append(b"unharmed")
        self.assertEqual(self.stop_and_compare(group), [b"unharmed"])

    def test_tail_survives_a_member(self) -> None:
        """A reader that follows sees every entry once, in order, while leaders die."""
        group = self.group()
        with dledger.connect(group.peers_text, timeout=90.0) as writer:
            with dledger.connect(group.peers_text, timeout=90.0) as reader:
                entries = reader.tail(0, follow=True, timeout=20.0)
                seen = []
                for round_number in range(3):
                    bodies = [b"%d %d" % (round_number, number) for number in range(20)]
                    writer.append_many(bodies)
                    while not seen or seen[-1] != bodies[-1]:
                        seen.append(next(entries).body)
                    leader_id = group.leader()
                    group.members[leader_id].kill()
                    writer.append(b"%d after" % round_number)
                    group.members[leader_id].start()
                    group.leader()
        expected = []
        for round_number in range(3):
            expected += [b"%d %d" % (round_number, number) for number in range(20)]
            expected.append(b"%d after" % round_number)
        self.assertEqual([body for body in seen if body], expected[:-1])


class BelongingTests(GroupCase):
    """Usual slips of an operator: a disk that is not mounted, a forgotten list of members."""

    def appended(self, group: Group, count: int) -> list[bytes]:
        """Acknowledged entries."""
        bodies = [b"entry %d" % number for number in range(count)]
        with dledger.connect(group.peers_text, timeout=90.0) as log:
            log.append_many(bodies)
        return bodies

    def test_empty_disk(self) -> None:
        """n2 is away, n0 dies, n1 comes back with an empty disk: nobody leads, until n0 is back with all."""
        group = self.group()
        group.leader()
        first = self.appended(group, 10)
        group.wait_settled()
        n0, n1, n2 = (group.members[peer_id] for peer_id in ("n0", "n1", "n2"))
        n2.kill()
        acknowledged = first + self.appended(group, 100)
        n0.kill()
        n1.kill()
        n1.ledger_path.rename(n1.ledger_path.with_name("unmounted"))
        n1.start()
        n2.start()
        group.wait_until(
            lambda: all(member.metadata() is not None for member in (n1, n2)), "n1 and n2 answer"
        )
        self.assertRaises(
            dledger.DLedgerError, dledger.connect(group.peers_text, timeout=5.0).append, b"to an empty disk"
        )
        n0.start()
        group.leader()
        with dledger.connect(group.peers_text, timeout=90.0) as log:
            bodies = [entry.body for entry in log.tail(0, follow=False) if entry.body]
        self.assertEqual(bodies[: len(acknowledged)], acknowledged)
        self.stop_and_compare(group)

    def test_forgotten_members(self) -> None:
        """The directory of a member of three does not start as a group of one, and nothing in it changes."""
        group = self.group()
        group.leader()
        self.appended(group, 10)
        group.stop()
        path = group.members["n0"].ledger_path
        before = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
        alone = Member("n0", {"n0": group.peers["n0"]}, self.directory / "n0", options=FILES)
        alone.start()
        self.addCleanup(alone.kill)
        self.assertNotEqual(alone.wait(seconds=120), 0)
        self.assertIn("a group of the members n0, n1, n2, but --peers names n0", alone.log_tail())
        after = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
        self.assertEqual(after, before)
        group.start()
        group.leader()
        self.stop_and_compare(group)

    def test_same_names(self) -> None:
        """A member of another group with the same names is turned away, and says why."""
        group = self.group()
        group.leader()
        self.appended(group, 10)
        group.wait_until(lambda: self.named(*group.members.values()), "an id that all know")
        group.members["n2"].stop()
        elsewhere = self.directory / "elsewhere"
        other = Member("n2", {"n2": group.peers["n2"]}, elsewhere, options=FILES)
        self.addCleanup(other.kill)
        other.start()
        group.wait_until(lambda: self.named(other), "an id of its own")
        other.stop()
        mixed = Member("n2", group.peers, elsewhere, options={**FILES, "accept_new_members": True})
        self.addCleanup(mixed.kill)
        mixed.start()
        group.wait_until(lambda: "does not belong to this group" in mixed.log_tail(40), "n2 is turned away")
        self.assertIn("the group with the id", mixed.log_tail(40))
        self.appended(group, 10)
        self.assertIn(group.leader(among=("n0", "n1")), ("n0", "n1"))

    def named(self, *members: Member) -> bool:
        """Whether they all know the id of their group."""
        said = [member.metadata() for member in members]
        return all(answer is not None and answer.is_group_known for answer in said)
