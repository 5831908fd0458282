# -*- test-case-name: tests.interop.test_java_client -*-
"""
Java's own client at a group of ours, call by call; where possible compared with a group of Java's.
"""

from __future__ import annotations

import base64
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import dledger
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.envelopes import envelope_head
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse
from tests.interop.java import JavaClient, JavaMissing, class_path
from tests.interop.mixed import DEADLINE_S, JAVA, OURS, MixedGroup
from tests.interop.test_mixed_groups import bodies
from tests.processes.asking import ask
from tests.processes.children import wait_until
from tests.processes.ledgers import read_records

PATIENT_JAVA: dict[str, object] = {"heartBeatTimeIntervalMs": 20_000}
PATIENT_OURS: dict[str, object] = {"heart_beat_time_interval_ms": 20_000}
FLOOD = 12_000
#: Default number of appends that may wait for the commit, in Java and in ours.
PENDING_MAX = 10_000
#: Our proposals hold up to this many appends, so up to this many of the last places may stay empty.
SHARED_MAX = 64


def threaded(call: Callable[[], object]) -> threading.Thread:
    """A started thread."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


class JavaClientTests(SynchronousTestCase):
    """Three members of one kind, Java's client."""

    def group_of(
        self, kind: str, *, java: dict[str, object] | None = None, patient: bool = False, **ours: object
    ) -> MixedGroup:
        """
        A started group that is ended after the test.

        @param patient: its leader, n0 if it is ours, stays the leader without followers during a test.
        """
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        group = MixedGroup(
            self.directory, (kind, kind, kind), java={**(PATIENT_JAVA if patient else {}), **(java or {})},
            ours=ours, only=PATIENT_OURS if patient else {},
        )
        self.addCleanup(group.kill)
        group.start()
        group.leader()
        if patient and kind == OURS:
            group.lead("n0")
        return group

    def client_of(self, group: MixedGroup, *peer_ids: str) -> JavaClient:
        """A started client that is ended after the test; it knows these members first, or all."""
        peers = {peer_id: group.peers[peer_id] for peer_id in peer_ids or group.peers}
        client = JavaClient(peers, self.directory, group=group.name)
        self.addCleanup(client.kill)
        client.start()
        client.wait_started()
        return client

    def pause_followers(self, group: MixedGroup) -> str:
        """Pause all members but the leader. @return: its id."""
        leader_id = group.leader()
        for peer_id, member in group.members.items():
            if peer_id != leader_id:
                member.pause()
        return leader_id

    def resume(self, group: MixedGroup) -> None:
        """Resume all members."""
        for member in group.members.values():
            member.resume()

    # -- equal answers ------------------------------------------------------------------------------

    def answers(self, kind: str) -> dict[str, object]:
        """The answers of a group of this kind to Java's client; member ids are replaced by roles."""
        group = self.group_of(kind)
        client = self.client_of(group)
        reported: dict[str, object] = {}
        for text in ("", "a", "x" * 20_000, "Grüße"):
            body = text.encode()
            index = self.append_at_last(client, body)
            group.acknowledged[index] = body
            reported[f"append {text[:5]}"] = self.get(client, index) == (ResponseCode.SUCCESS, body)
        reported["envelope"] = self.enveloped(group, client)
        term, end_index = group.append(b"last"), group.wait_equal()
        leader_id = group.leader()
        follower_id = next(peer_id for peer_id in group.peers if peer_id != leader_id)
        names = {leader_id: "leader", follower_id: "follower"}
        for text, index in (("end", end_index), ("end + 1", end_index + 1), ("-1", -1), ("2**40", 1 << 40)):
            reported[f"get {text}"] = self.get(client, index)
        for peer_id, address in group.peers.items():
            code, named, count = client.metadata(peer_id, address)
            reported[f"metadata {names.get(peer_id, 'other')}"] = code, names.get(named), count
        word = base64.b64encode(b"not for me").decode()
        for text, name, peer_id, words in (
            ("append to a follower", group.name, follower_id, f"append {word}"),
            ("get from a follower", group.name, follower_id, "get 0"),
            ("append to another group", "other", leader_id, f"append {word}"),
            ("get from another group", "other", leader_id, "get 0"),
            ("append to a stranger", group.name, "n9", f"append {word}"),
            ("transfer of another term", group.name, leader_id,
             f"transfer {leader_id} {follower_id} {term + 7}"),
            ("transfer to a stranger", group.name, leader_id, f"transfer {leader_id} n9 {term}"),
            ("transfer by a follower", group.name, follower_id,
             f"transfer {follower_id} {leader_id} {term}"),
        ):
            to = group.peers.get(peer_id, group.peers[leader_id])
            code, named = client.at(name, peer_id, to, words)
            reported[text] = code, names.get(named, named)
        # On a slow machine the request may fail and yet take effect.
        wait_until(
            lambda: client.transfer(leader_id, follower_id, term) == ResponseCode.SUCCESS
            or group.leader() != leader_id, seconds=DEADLINE_S, what="a transfer by Java's client", every=0.5,
        )
        reported["who leads"] = names.get(group.leader())
        group.acknowledged[self.append_at_last(client, b"after the transfer")] = b"after the transfer"
        group.check()
        return reported

    def enveloped(self, group: MixedGroup, client: JavaClient) -> bool:
        """Append with time and headers. @return: whether Java's client has envelope and body as one body."""
        with dledger.connect(group.peers, group=group.name, timeout=DEADLINE_S, envelope=True) as log:
            index = log.append(b"4711", headers={"type": b"order"}).index
            entry = log.get(index)
        self.assertEqual((entry.body, entry.headers), (b"4711", {"type": b"order"}))
        self.assertIsNotNone(entry.timestamp)
        whole = envelope_head(entry.timestamp, entry.headers) + b"4711"
        group.acknowledged[index] = whole
        return self.get(client, index) == (ResponseCode.SUCCESS, whole)

    def test_answers_are_java_s(self) -> None:
        """Append, get, METADATA, transfer, and all their refusals: both groups give the same answers."""
        ours, theirs = self.answers(OURS), self.answers(JAVA)
        self.assertEqual(ours, theirs)
        self.assertIs(ours["envelope"], True)
        self.assertEqual(ours["who leads"], "follower")
        self.assertEqual(ours["append to a follower"], (ResponseCode.NOT_LEADER, "leader"))
        self.assertEqual(ours["get end + 1"], (ResponseCode.INDEX_OUT_OF_RANGE, b""))

    def test_below_the_begin(self) -> None:
        """Entries of expired files are refused as by Java; the first entry left is read."""
        codes = {}
        for kind in (OURS, JAVA):
            group = self.group_of(kind)
            group.append(b"followers follow")
            group.append_pipelined(bodies("several files", 900))
            group.wait_equal()
            group.stop()
            for peer_id, member in group.members.items():
                ledger = member.directory / f"dledger-{peer_id}"
                for path in sorted((ledger / "data").iterdir())[:2]:
                    path.unlink()
                if kind is OURS:
                    # Without the mark, the files at hand are taken as they are; with it they are refused.
                    (ledger / "commitmark").unlink()
                begin = next(read_records(ledger))
            group.start()
            client = self.client_of(group)
            self.assertGreater(begin.index, 100)
            wait_until(
                lambda client=client, begin=begin: client.get(begin.index) == (200, begin.body),
                seconds=DEADLINE_S, what="the first entry that is left", every=0.2,
            )
            codes[kind] = [self.get(client, index)[0] for index in (0, begin.index - 1, begin.index)]
            group.kill()
        self.assertEqual(codes[OURS], codes[JAVA])
        self.assertEqual(codes[OURS], [ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN] * 2 + [ResponseCode.SUCCESS])

    # -- redirects ----------------------------------------------------------------------------------

    def test_reported_of_a_follower_only(self) -> None:
        """A client that knows one follower only, any of them, learns the leader and is served by it."""
        group = self.group_of(OURS)
        leader_id = group.leader()
        for peer_id in group.peers:
            if peer_id == leader_id:
                continue
            client = self.client_of(group, peer_id)
            body = f"by way of {peer_id}".encode()
            index = self.append_at_last(client, body)
            self.assertEqual(self.get(client, index), (ResponseCode.SUCCESS, body))
            group.acknowledged[index] = body
            self.assertNotEqual(group.leader(), peer_id, "the client was not sent to a follower")
        group.check()

    def test_leader_dies(self) -> None:
        """The client finds the new leader when the known one was killed."""
        group = self.group_of(OURS)
        client = self.client_of(group)
        self.append_at_last(client, b"before")
        leader_id = group.leader()
        group.members[leader_id].kill()
        self.assertNotEqual(group.leader(), leader_id)
        wait_until(
            lambda: client.append(b"again")[0] == ResponseCode.SUCCESS, seconds=DEADLINE_S,
            what="an append of Java's client at the new leader", every=0.2,
        )
        group.start(leader_id)
        group.check()

    # -- bodies -------------------------------------------------------------------------------------

    def test_largest_body(self) -> None:
        """Both take and give back the largest body that Java can encode; both refuse one byte more."""
        data_bytes = 1 << 24
        for kind, refusal in (
            (OURS, ResponseCode.UNEXPECTED_ARGUMENT), (JAVA, ResponseCode.INTERNAL_ERROR)
        ):
            options: dict[str, object] = {"mapped_file_size_for_entry_data": data_bytes}
            group = self.group_of(kind, java={"mappedFileSizeForEntryData": data_bytes}, **options)
            client = self.client_of(group)
            config = DLedgerConfig(peers=group.peers, self_id="n0", **options)  # type: ignore[arg-type]
            largest = config.body_bytes_max
            self.assertEqual(largest, 4 * 1024 * 1024 - 48)
            body = bytes(range(256)) * (largest // 256) + b"x" * (largest % 256)
            index = self.append_at_last(client, body)
            self.assertEqual(self.get(client, index), (ResponseCode.SUCCESS, body))
            # Java throws, which its client turns into 500 (INTERNAL_ERROR); ours says what was wrong.
            wait_until(
                lambda client=client, body=body, refusal=refusal: client.append(body + b"x")[0] == refusal,
                seconds=DEADLINE_S, what="the refusal",
            )
            self.append_at_last(client, b"it goes on")
            ledger = group.members["n0"].directory / "dledger-n0"
            group.acknowledged[index] = body
            group.check()
            self.assertEqual(max(len(record.body) for record in read_records(ledger)), largest)
            group.kill()

    def get(self, client: JavaClient, index: int) -> tuple[int, bytes]:
        """The answer for an index; the client's own 500, which means no answer in time, is repeated."""
        said: list[tuple[int, bytes]] = []

        def is_answered() -> bool:
            said.append(client.get(index))
            return said[-1][0] != ResponseCode.INTERNAL_ERROR

        wait_until(is_answered, seconds=DEADLINE_S, what=f"an answer to GET {index}")
        return said[-1]

    def append_at_last(self, client: JavaClient, body: bytes) -> int:
        """The index of a body; repeated, as Java's client gives up after 3 s, too soon for a busy machine."""
        taken: list[int] = []

        def is_taken() -> bool:
            code, index = client.append(body)
            taken.append(index)
            return code == ResponseCode.SUCCESS

        wait_until(is_taken, seconds=DEADLINE_S, what=f"an append of {len(body)} bytes")
        return taken[-1]

    # -- uncommitted --------------------------------------------------------------------------------

    def test_uncommitted(self) -> None:
        """An entry without a majority is not shown; with one it is, at once."""
        group = self.group_of(OURS, patient=True, max_wait_ack_time_ms=1_000)
        client = self.client_of(group)
        group.append(b"committed")
        end_index = group.wait_equal()
        leader_id = self.pause_followers(group)
        group.propose(leader_id, [b"uncommitted"])
        self.assertEqual(self.state(group, leader_id).end_index, end_index + 1)
        # Without a majority this member cannot prove that it leads, so it shows no committed entries either.
        wait_until(
            lambda: client.get(end_index + 1) == (ResponseCode.NOT_LEADER, b""), seconds=DEADLINE_S,
            what="a refusal",
        )
        self.assertEqual(self.state(group, leader_id).committed_index, end_index)
        self.resume(group)
        wait_until(
            lambda: client.get(end_index + 1) == (ResponseCode.SUCCESS, b"uncommitted"), seconds=DEADLINE_S,
            what="the entry, once it is committed", every=0.1,
        )
        group.check()

    def state(self, group: MixedGroup, peer_id: str) -> MetadataResponse:
        """A member's view of itself."""
        said = ask(group.peers[peer_id], MetadataRequest(group=group.name, remote_id=peer_id))
        assert isinstance(said, MetadataResponse)
        return said

    # -- ten thousand pending -----------------------------------------------------------------------

    def test_ten_thousand_at_once(self) -> None:
        """Java's asynchronous client has 10,000 appends in flight: each ends, and accepted ones are there."""
        group = self.group_of(OURS, mapped_file_size_for_entry_data=1 << 20, max_wait_ack_time_ms=30_000)
        client = self.client_of(group)
        leader_id = group.leader()
        ends = client.flood(leader_id, group.peers[leader_id], count=10_000)
        taken = self.count_flooded(group)
        self.assertEqual(ends, {"200": 10_000, "indexes": 10_000})
        self.assertEqual(taken, 10_000)

    def count_flooded(self, group: MixedGroup) -> int:
        """Compare the members. @return: the number of entries of the flood."""
        group.check()
        ledger = group.members["n0"].directory / "dledger-n0"
        return sum(record.body.startswith(b"flood ") for record in read_records(ledger))

    def test_pending_is_full(self) -> None:
        """Without followers 10,000 appends wait and the others get 503; with them, the 10,000 succeed."""
        group = self.group_of(
            OURS, patient=True, mapped_file_size_for_entry_data=1 << 20, max_wait_ack_time_ms=200_000,
            # Followers that wake up on a busy machine must hear this leader before they elect another.
            max_heart_beat_leak=15,
        )
        client = self.client_of(group)
        group.append(b"it leads")
        before = group.wait_equal()
        leader_id = self.pause_followers(group)
        ends: list[dict[str, int]] = []
        flooding = threaded(lambda: ends.append(client.flood(
            leader_id, group.peers[leader_id], count=FLOOD, refused=FLOOD - PENDING_MAX, seconds=200.0
        )))
        wait_until(
            lambda: "refused" in client.log_path.read_text(), seconds=DEADLINE_S, every=0.2,
            what="refused appends",
        )
        self.assertEqual(ends, [])
        self.assertEqual(self.state(group, leader_id).committed_index, before)
        self.resume(group)
        flooding.join(230)
        self.assertEqual(len(ends), 1, "the client has not come to an end")
        self.assertIn("200", ends[0])
        taken = ends[0]["200"]
        self.assertEqual(ends[0], {"200": taken, "503": FLOOD - taken, "indexes": taken})
        self.assertLessEqual(taken, PENDING_MAX)
        self.assertGreater(taken, PENDING_MAX - SHARED_MAX)
        self.assertEqual(self.count_flooded(group), taken)

    def test_nobody_acknowledges(self) -> None:
        """Without followers, ours as Java lets 10,000 wait until 502, and refuses the others with 503."""
        shares = {}
        for kind in (OURS, JAVA):
            group = self.group_of(
                kind, patient=True, java={"mappedFileSizeForEntryData": 1 << 20},
                # Longer than a busy machine takes to send all: a timed-out append makes room for another.
                mapped_file_size_for_entry_data=1 << 20, max_wait_ack_time_ms=10_000,
            )
            client = self.client_of(group)
            group.append(b"it leads")
            group.wait_equal()
            leader_id = self.pause_followers(group)
            shares[kind] = client.flood(leader_id, group.peers[leader_id], count=FLOOD)
            group.kill()
        late, full = "502", "503"
        for kind, ends in shares.items():
            self.assertEqual(set(ends), {late, full, "indexes"}, f"{kind}: {ends}")
            self.assertEqual(ends[late] + ends[full], FLOOD)
            self.assertEqual(ends["indexes"], 0)
        self.assertLessEqual(shares[OURS][late], PENDING_MAX)
        self.assertGreater(shares[OURS][late], PENDING_MAX - SHARED_MAX)
