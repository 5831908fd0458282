# -*- test-case-name: tests.hostile.test_forged -*-
"""Messages in the name of members, by somebody that can reach the port: none ends a member or its log."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import time
from collections.abc import Callable

from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import MetadataRequest, PullRequest, PullResponse
from tests.hostile.forger import (
    PlayedMember,
    Repeater,
    StrangeRequests,
    answering_with,
    base,
    batch,
    beat,
    fire,
    fuzz,
    push,
    transfer,
    vote,
)
from tests.hostile.target import HostileCase, frames, notify, until
from tests.processes.asking import ask
from tests.processes.children import wait_until
from tests.processes.members import ended_well

#: Terms that no sound member has, beside the own one plus 2^33.
ABSURD = ((1 << 63) - 1, (1 << 63) - 2, 1 << 62)
#: No sound group of a test reaches this term.
SOUND_BELOW = 1 << 40
#: Messages of the fuzzers.
CLIENT_MESSAGES, MEMBER_MESSAGES = 50_000, 50_000
#: A rate of attacks, in a second.
RATE = 100.0
#: Spans with and without a flood, and the length of each, in seconds.
SPANS, SPAN_S = 6, 0.5
#: Bytes by which all logs together may grow during a flood.
LOG_BYTES = 60_000


class ForgedCase(HostileCase):
    """Forgers know the addresses and the ids of the members."""

    def restart_all(self) -> None:
        """Stop and start every member; the group serves again."""
        for member in self.members.values():
            if member.is_running:
                self.assertTrue(ended_well(member.stop()), member.log_tail())
        for member in self.members.values():
            member.start()
        self.assert_serving()

    def assert_serving(self) -> None:
        """All members live, follow one leader in a sound term, and a client is served."""
        leader = self.wait_for_leader()
        with self.client.working() as seen:
            time.sleep(0.3)
        self.assertTrue(seen.latencies_s)
        for peer_id in self.peers:
            self.wait_in_step(peer_id, seconds=60)
        self.assertLess(max(self.terms().values()), SOUND_BELOW, leader)
        self.assert_all_alive()

    def known(self) -> EntryBatch:
        """Committed entries, as a client reads them."""
        leader = self.wait_for_leader()
        answer = ask(self.peers[leader], PullRequest(
            group="default", remote_id=leader, begin_index=0, max_bytes=4000
        ), native=True)
        assert isinstance(answer, PullResponse) and answer.entries is not None
        return answer.entries


class TermTests(ForgedCase):
    """Terms out of bounds."""

    def test_absurd_terms(self) -> None:
        """In requests of every name, of a member that is away, and in its answers; then a restart of all."""

        def attack() -> None:
            for term in (*ABSURD, (1 << 33) + self.terms()["n0"]):
                for to, speaker in itertools.permutations(self.peers, 2):
                    for request in (
                        vote(speaker, to, term, ledger_end_index=1 << 50, ledger_end_term=term),
                        beat(speaker, to, term), push(speaker, to, term, PushType.COMMIT),
                    ):
                        fire(self.peers[to], request)

        self.serve_through(attack, share=0.2, calm_s=1.0)
        away = next(iter(set(self.peers) - {self.wait_for_leader()}))
        self.members[away].stop()
        with self.client.working() as seen:
            for term in (*ABSURD, (1 << 33) + 10):
                for to in set(self.peers) - {away}:
                    for request in (
                        vote(away, to, term, ledger_end_index=1 << 50, ledger_end_term=term),
                        beat(away, to, term), push(away, to, term, PushType.COMMIT, commit_index=1 << 55),
                        push(away, to, term, PushType.APPEND, batch(0, term=term)),
                    ):
                        fire(self.peers[to], request)
                played = PlayedMember(self.peers[away], answering_with(self.peers, term))
                try:
                    self.assertTrue(until(lambda: played.answers > 5, seconds=10))  # noqa: B023
                finally:
                    played.close()
        self.assertEqual((seen.unknown, seen.failed), ([], []))
        self.members[away].start()
        self.assert_serving()
        self.restart_all()
        self.assert_nothing_lost()


class PushTests(ForgedCase):
    """Pushes of somebody that is not the leader."""

    def test_forged_pushes(self) -> None:
        """TRUNCATE above the end and below the commit, APPEND with high terms and commit indexes."""
        self.calm(1.0)  # so that there are entries
        entries = self.known()
        leader = self.wait_for_leader()
        away = min(set(self.peers) - {leader})
        self.serve_through(lambda: self.send_pushes(entries, leader), share=0.2, calm_s=1.0)
        self.members[away].stop()
        with self.client.working() as seen:
            self.send_pushes(entries, away)
        self.assertTrue(seen.latencies_s)
        self.members[away].start()
        self.assert_serving()
        self.restart_all()
        self.assert_nothing_lost()

    def send_pushes(self, entries: EntryBatch, speaker: str) -> None:
        """
        To the other members. None is confirmed by a COMPARE on its connection, and no committed entry is to
        be cut: so none may be obeyed.
        """
        end = entries.last_index
        for to in set(self.peers) - {speaker}:
            term = self.terms()[to]
            far = batch(10**12, term=term, pos=1000 * 16 * (1 << 20))
            for above in (0, 1):
                for kind, forged, commit in (
                    (PushType.TRUNCATE, far, 10**12),
                    (PushType.TRUNCATE, batch(1, term=term, pos=52), end),
                    (PushType.TRUNCATE, batch(0, term=term), -1),
                    (PushType.APPEND, batch(end + 1, term=term, count=5), 1 << 55),
                    (PushType.APPEND, batch(end + 1, term=1 << 61), 1 << 55),
                    (PushType.APPEND, batch(end + 1, term=term + 100), end),
                    (PushType.COMMIT, None, 1 << 55),
                ):
                    fire(self.peers[to], push(
                        speaker, to, term + above, kind, forged, commit_index=commit
                    ))


class FloodTests(ForgedCase):
    """Valid messages of strangers, a hundred in a second."""

    def flooded(self, act: Callable[[], None], *, leader_stays: bool = True) -> None:
        """
        Run one client beside spans with and without C{act}, in turn. With it the client keeps 80 % of its
        rate.

        Other programs on this machine slow both, not evenly. So the best of six rounds counts; an attack
        that works leaves nothing in any of them.
        """
        leader, terms = self.wait_for_leader(), self.terms()
        log_bytes, kept = self.log_bytes(), 0.0
        for _ in range(6):
            calm: list[tuple[float, float]] = []
            busy: list[tuple[float, float]] = []
            with self.client.working() as seen, Repeater(act, rate=RATE) as repeater:
                for number in range(2 * SPANS):
                    repeater.is_paused = number % 2 == 0
                    began = time.monotonic()
                    time.sleep(SPAN_S)
                    (calm if repeater.is_paused else busy).append((began, time.monotonic()))
            self.assertEqual((seen.unknown, seen.failed), ([], []))
            rates = seen.rate_in(calm), seen.rate_in(busy)
            notify(f"{self.id().rpartition('.')[2]}: {repeater.calls / (SPANS * SPAN_S):.0f} a second, "
                 f"{rates[1]:.0f}/s beside {rates[0]:.0f}/s, longest pause {seen.longest_pause_s:.2f} s, "
                 f"logs grew by {self.log_bytes() - log_bytes} bytes, terms {terms} -> {self.terms()}")
            self.assertGreater(repeater.calls, 0.3 * RATE * SPANS * SPAN_S)
            kept = max(kept, rates[1] / rates[0])
            if kept > 0.8:
                break
        self.assertGreater(kept, 0.8)
        self.assertLess(self.log_bytes() - log_bytes, LOG_BYTES)
        if leader_stays:
            self.assertEqual((self.wait_for_leader(), self.terms()), (leader, terms))

    def test_votes(self) -> None:
        """A term above the present one, in every name, with a long log, as a transfer too."""
        names = itertools.cycle(itertools.permutations(self.peers, 2))
        terms = self.terms()

        def act() -> None:
            speaker, to = next(names)
            fire(self.peers[to], vote(
                speaker, to, terms[to] + 1, ledger_end_index=1 << 50, ledger_end_term=terms[to], transfer=True
            ), seconds=0.05)

        self.flooded(act)

    def test_votes_of_a_member_that_is_away(self) -> None:
        """Nobody else speaks for it, so its votes are heard."""
        leader = self.wait_for_leader()
        away = min(set(self.peers) - {leader})
        self.members[away].stop()
        terms = self.terms()
        others = itertools.cycle(set(self.peers) - {away})

        def act() -> None:
            to = next(others)
            fire(self.peers[to], vote(
                away, to, terms[leader] + 1, ledger_end_index=1 << 50, ledger_end_term=terms[leader],
                transfer=True,
            ), vote(away, to, terms[leader] + 50), seconds=0.05)

        self.flooded(act)
        self.members[away].start()
        self.assert_serving()

    def test_beats_of_a_member_that_is_away(self) -> None:
        """Heartbeats and pushes of ever higher terms: nobody at its address says that it leads."""
        leader = self.wait_for_leader()
        away = min(set(self.peers) - {leader})
        self.members[away].stop()
        terms = itertools.count(self.terms()[leader] + 1)
        others = itertools.cycle(set(self.peers) - {away})

        def act() -> None:
            to, term = next(others), next(terms)
            fire(self.peers[to], beat(away, to, term),
                 push(away, to, term, PushType.COMMIT, commit_index=3), seconds=0.05)

        self.flooded(act)
        self.members[away].start()
        self.assert_serving()

    def are_healthy(self) -> bool:
        """Whether every member serves, and may vote."""
        said = [member.metadata() for member in self.members.values()]
        return all(one is not None and not one.health for one in said)

    def test_beats_of_a_leader_that_has_died(self) -> None:
        """Heartbeats of its term go on, in its name: the others elect all the same."""
        # In the first moments of a new group two members are not enough, as one of them may not vote yet.
        wait_until(self.are_healthy, seconds=60, what="three healthy members")
        leader = self.wait_for_leader()
        term = self.terms()[leader]
        others = itertools.cycle(set(self.peers) - {leader})

        def act() -> None:
            to = next(others)
            fire(self.peers[to], beat(leader, to, term), beat(leader, to, term + 1), seconds=0.05)

        self.members[leader].kill()
        with Repeater(act, rate=RATE) as repeater:
            repeater.is_paused = False
            wait_until(lambda: self.wait_for_leader() != leader, seconds=60, what="another leader")
            with self.client.working() as seen:
                time.sleep(1.0)
        self.assertTrue(seen.latencies_s)
        self.assertEqual((seen.unknown, seen.failed), ([], []))
        self.members[leader].start()
        self.assert_serving()

    def test_transfers(self) -> None:
        """A client's transfers are granted, one in some seconds; TAKE_LEADERSHIP of strangers is not."""
        names = itertools.cycle(itertools.permutations(self.peers, 2))
        speaks = itertools.cycle((True, True, False, False, True))  # both kinds for each of the six names

        def give() -> None:
            giver, taker = next(names)
            fire(self.peers[giver], transfer(None, giver, -1, giver=giver, taker=taker), seconds=0.05)

        self.flooded(give, leader_stays=False)

        def take() -> None:
            giver, taker = next(names)
            speaker = giver if next(speaks) else None
            request = transfer(speaker, taker, term, giver=giver, taker=taker)
            fire(self.peers[taker], request, seconds=0.05)

        time.sleep(3.0)
        term = max(self.terms().values())
        self.flooded(take)

    def test_claims(self) -> None:
        """Connections that speak for the leader, or for a follower."""
        names = itertools.cycle(itertools.permutations(self.peers, 2))
        held: list[socket.socket] = []
        self.addCleanup(lambda: [connection.close() for connection in held])

        def act() -> None:
            speaker, to = next(names)
            with contextlib.suppress(OSError):
                connection = self.connect(to)
                connection.sendall(frames(MetadataRequest(**base(speaker, to, -1))))
                held.append(connection)

        self.flooded(act)


    def test_claims_of_a_member_that_is_away(self) -> None:
        """Somebody speaks for it when it comes back, and goes on: it follows all the same."""
        away = min(set(self.peers) - {self.wait_for_leader()})
        self.members[away].stop()
        others = sorted(set(self.peers) - {away})
        held = {to: self.connect(to) for to in others}
        next_one = itertools.cycle(others)

        def act() -> None:
            to = next(next_one)
            held[to].sendall(frames(MetadataRequest(**base(away, to, -1))))
            held[to].recv(65536)

        with Repeater(act, rate=10) as repeater:
            repeater.is_paused = False
            time.sleep(0.5)
            self.members[away].start()
            with self.client.working() as seen:
                time.sleep(1.0)
            self.wait_in_step(away, seconds=60)
        self.assertEqual((seen.unknown, seen.failed), ([], []))
        self.assert_serving()


class FuzzTests(ForgedCase):
    """Well-formed messages whose numbers and names do not fit."""

    def test_as_a_client(self) -> None:
        """All kinds, without a member's name."""
        calm = self.calm(1.0)
        rng = random.Random(11)
        terms = range(max(self.terms().values()) + 2)
        requests = StrangeRequests(
            rng=rng, ids=tuple(self.peers), speaker=None, known=self.known(), terms=terms
        )
        with self.client.working() as seen:
            began = time.monotonic()
            answered = fuzz(self.peers, requests, rng, count=CLIENT_MESSAGES)
            notify(f"{CLIENT_MESSAGES} in {time.monotonic() - began:.1f} s, {answered} bytes of answers")
        self.assertTrue(seen.latencies_s and calm.latencies_s)
        self.assert_serving()
        self.assert_nothing_lost()

    def test_as_a_member(self) -> None:
        """All kinds, in the name of a member that is away, in present and near terms."""
        self.calm(1.0)
        known = self.known()
        away = min(set(self.peers) - {self.wait_for_leader()})
        for peer_id in self.peers:
            self.wait_in_step(peer_id, seconds=60)
        time.sleep(0.3)
        self.members[away].stop()
        rng = random.Random(12)
        others = {peer_id: address for peer_id, address in self.peers.items() if peer_id != away}
        began = time.monotonic()
        for _ in range(10):
            now = max(self.terms().values())
            requests = StrangeRequests(
                rng=rng, ids=tuple(others), speaker=away, known=known, terms=range(max(now - 3, 0), now + 3)
            )
            fuzz(others, requests, rng, count=MEMBER_MESSAGES // 10)
        notify(f"{MEMBER_MESSAGES} in {time.monotonic() - began:.1f} s, terms {self.terms()}")
        self.members[away].start()
        self.assert_serving()
        self.restart_all()
        self.assert_nothing_lost()
