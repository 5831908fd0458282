# -*- test-case-name: tests.client.test_appender -*-
"""Appends reach the log in the order of the calls, at most once, or their callers are informed."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.appender import AppendOutcome
from dledger.client.connect_options import AppendLimits
from dledger.client.errors import AppendFailed, AppendWithoutLeader, UnknownOutcome
from dledger.client.values import Appended
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest, AppendResponse, Request
from tests.client.fakes import FakeGroup


def is_append(request: Request) -> bool:
    """For C{FakeMember.holds}."""
    return isinstance(request, AppendRequest)


def unknown(outcome: AppendOutcome) -> bool:
    """Whether an outcome is of that kind."""
    return isinstance(outcome, UnknownOutcome)


class GroupCase(SynchronousTestCase):
    """Three members and a client; nothing is left running."""

    options: dict[str, Any] = {}

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.client = self.group.client(**self.options)
        self.addCleanup(self.close)

    def close(self) -> None:
        """A closed client has no timers and no connections."""
        self.client.close()
        self.group.settle()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual([member.wires for member in self.group.members.values()], [[], [], []])

    def submit(self, *bodies: bytes) -> list[AppendOutcome]:
        """Append in one call; its outcome will be in the list."""
        outcomes: list[AppendOutcome] = []
        self.client.submit(bodies, outcomes.append)
        return outcomes

    def appends_at(self, member_id: str) -> list[tuple[bytes, ...]]:
        """Bodies of the append requests that a member has got."""
        return [r.bodies for r in self.group[member_id].received if isinstance(r, AppendRequest)]


class PlainTests(GroupCase):
    """Nothing goes wrong."""

    def test_each_call_gets_its_index(self) -> None:
        """Calls of one turn share a frame; each gets its own index."""
        first, second = self.submit(b"a"), self.submit(b"b", b"c")
        self.group.settle()
        self.assertEqual(first, [(Appended(index=0, term=1, pos=0),)])
        self.assertEqual(second, [(Appended(index=1, term=1, pos=-1, count=2),)])
        self.assertEqual(self.appends_at("n0"), [(b"a", b"b", b"c")])

    def test_an_empty_call_sends_nothing(self) -> None:
        """No bodies: done at once, nothing is sent."""
        self.assertEqual(self.submit(), [()])

    def test_native_after_the_first_answer(self) -> None:
        """METADATA goes over remoting, appends as native frames."""
        self.submit(b"a")
        self.group.settle()
        self.assertEqual(self.group["n0"].formats, ["remoting", "native"])

    def test_large_call_is_cut(self) -> None:
        """One call in several frames: runs with offsets, in order."""
        (outcome,) = self.run_cut(AppendLimits(frame_count_max=2), [b"a", b"b", b"c", b"d", b"e"])
        runs = [(run.index, run.offset, run.count) for run in outcome]
        self.assertEqual(runs, [(0, 0, 2), (2, 2, 2), (4, 4, 1)])

    def test_frames_are_bounded_in_bytes(self) -> None:
        """A frame holds as many bytes as it may, and at least one body."""
        limits = AppendLimits(frame_bytes_max=10)
        self.run_cut(limits, [b"12345", b"12345", b"1", b"123456789012345", b"1", b"2"])
        self.assertEqual(
            self.appends_at("n0"), [(b"12345", b"12345"), (b"1",), (b"123456789012345",), (b"1", b"2")]
        )

    def test_frames_unless_reported_otherwise(self) -> None:
        """
        512 bodies or 128 KiB: larger ones gain nothing, and keep later appends waiting; smaller ones
        cost a round for each.
        """
        small, large = [b"s"] * 1000, [bytes(1024)] * 300
        self.submit(*small)
        self.group.settle()
        self.assertEqual([len(bodies) for bodies in self.appends_at("n0")], [512, 488])
        self.submit(*large)
        self.group.settle()
        self.assertEqual([len(bodies) for bodies in self.appends_at("n0")[2:]], [128, 128, 44])
        self.assertEqual(self.group.log, small + large)

    def run_cut(self, limits: AppendLimits, bodies: list[bytes]) -> list[Any]:
        """One call of a client with these limits."""
        self.client.close()
        self.client = self.group.client(limits=limits)
        outcomes = self.submit(*bodies)
        self.group.settle()
        self.assertEqual(self.group.log, bodies)
        return outcomes

    def test_frames_in_flight_are_bounded(self) -> None:
        """Above the bound, bodies gather until an answer comes."""
        self.client.close()
        self.client = self.group.client(limits=AppendLimits(frames_in_flight_max=2))
        self.group["n0"].holds = is_append
        for number in range(6):
            self.submit(b"%d" % number)
            self.group.settle()
        self.assertEqual(self.appends_at("n0"), [(b"0",), (b"1",)])
        self.group["n0"].release()
        self.group.settle()
        self.assertEqual(self.appends_at("n0")[2:], [(b"2", b"3", b"4", b"5")])

    def test_bytes_in_flight_are_bounded(self) -> None:
        """Above the bound in bytes, bodies gather until an answer comes."""
        self.client.close()
        self.client = self.group.client(limits=AppendLimits(in_flight_bytes_max=4))
        self.group["n0"].holds = is_append
        for body in (b"12", b"345", b"6"):
            self.submit(body)
            self.group.settle()
        self.assertEqual(self.appends_at("n0"), [(b"12",), (b"345",)])

    def test_remoting_carries_one_body(self) -> None:
        """Over remoting, each body has its frame; a member of ours keeps their order."""
        self.client.close()
        self.client = self.group.client(wire="remoting")
        outcomes = self.submit(b"a", b"b", b"c")
        self.group["n0"].holds = is_append
        self.group.settle()
        self.assertEqual(self.appends_at("n0"), [(b"a",), (b"b",), (b"c",)])
        self.assertEqual(outcomes, [])
        self.group["n0"].release(3)
        self.assertEqual(self.group.log, [b"a", b"b", b"c"])
        self.assertEqual(len(outcomes[0]), 3)

    def test_java_leader_gets_one_at_a_time(self) -> None:
        """A leader without our wire takes requests in any order: no second one before the answer."""
        self.group["n0"].wire_version = 0
        self.group["n0"].holds = is_append
        outcomes = self.submit(b"a", b"b")
        self.group.settle()
        self.assertEqual(self.appends_at("n0"), [(b"a",)])
        self.group["n0"].release()
        self.group.settle()
        self.assertEqual(self.appends_at("n0"), [(b"a",), (b"b",)])
        self.group["n0"].release()
        self.assertEqual(len(outcomes), 1)

    def test_java_leader_unordered(self) -> None:
        """A caller that does not care for order may have many under way."""
        self.client.close()
        self.client = self.group.client(is_ordered=False)
        self.group["n0"].wire_version = 0
        self.group["n0"].holds = is_append
        self.submit(b"a", b"b")
        self.group.settle()
        self.assertEqual(self.appends_at("n0"), [(b"a",), (b"b",)])

    def test_calls_from_within_an_outcome(self) -> None:
        """An outcome may call again; the requests of one read go out in one frame."""
        later: list[AppendOutcome] = []
        self.client.submit((b"a",), lambda _: self.client.submit((b"c",), later.append))
        self.client.submit((b"b",), lambda _: self.client.submit((b"d",), later.append))
        self.group.settle()
        self.assertEqual(self.appends_at("n0"), [(b"a", b"b"), (b"c", b"d")])
        self.assertEqual(len(later), 2)

    def test_a_caller_that_fails(self) -> None:
        """An exception in one caller's callback is logged and harms nobody else."""
        self.client.submit((b"a",), lambda _: 1 / 0)
        outcome = self.submit(b"b")
        self.group.settle()
        self.assertEqual(len(outcome), 1)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


class RefusedHereTests(GroupCase):
    """Appends that the client refuses by itself."""

    options = {"limits": AppendLimits(pending_count_max=3, pending_bytes_max=100)}

    def assertRefused(self, outcomes: list[AppendOutcome], code: ResponseCode, reason: str) -> None:
        """Failed at once, with the reason."""
        (error,) = outcomes
        assert isinstance(error, AppendFailed)
        self.assertIs(error.code, code)
        self.assertIn(reason, str(error))

    def test_a_text_is_refused(self) -> None:
        """Text is refused by name, and with it the whole call."""
        outcomes = self.submit(b"a", "b")
        self.assertRefused(outcomes, ResponseCode.UNEXPECTED_ARGUMENT, "not str")

    def test_a_large_body_is_refused(self) -> None:
        """No member can store more than 4 MiB with the header."""
        outcomes = self.submit(bytes(4 * 1024 * 1024 - 47))
        self.assertRefused(outcomes, ResponseCode.UNEXPECTED_ARGUMENT, "at most 4194256")

    def test_pending_bodies_are_bounded(self) -> None:
        """More bodies than may be pending fail at once; when some are done, there is room again."""
        self.group["n0"].holds = is_append
        first = self.submit(b"a", b"b")
        self.assertRefused(self.submit(b"c", b"d"), ResponseCode.LEADER_PENDING_FULL, "at most 3")
        self.submit(b"c")
        self.assertRefused(self.submit(b"d"), ResponseCode.LEADER_PENDING_FULL, "at most 3")
        self.group.settle()
        self.group["n0"].release()
        self.assertEqual(len(first), 1)
        self.assertEqual(self.submit(b"d"), [])

    def test_pending_bytes_are_bounded(self) -> None:
        """More bytes than may be pending fail at once."""
        self.submit(bytes(60))
        self.assertRefused(self.submit(bytes(41)), ResponseCode.LEADER_PENDING_FULL, "100")
        self.assertEqual(self.submit(bytes(40)), [])

    def test_one_large_call(self) -> None:
        """A call beyond the bound is taken when nothing else is pending: else it could never be."""
        outcomes = self.submit(*[b"x"] * 10)
        self.group.settle()
        self.assertEqual(len(outcomes), 1)

    def test_a_closed_client_takes_nothing(self) -> None:
        """A closed client takes nothing."""
        self.client.close()
        self.assertRefused(self.submit(b"a"), ResponseCode.NETWORK_ERROR, "closed")


class WaitingTests(GroupCase):
    """C{when_full="wait"}."""

    options = {
        "limits": AppendLimits(pending_count_max=2, when_full="wait", waiting_calls_max=2),
        "timeout_s": 5.0,
    }

    def test_they_wait_in_order(self) -> None:
        """Calls beyond the bound wait, up to a bound of their own, and keep their order."""
        self.group["n0"].holds = is_append
        outcomes = [self.submit(b"%d" % number) for number in range(5)]
        self.assertEqual([len(outcome) for outcome in outcomes], [0, 0, 0, 0, 1])
        (error,) = outcomes[4]
        assert isinstance(error, AppendFailed)
        self.assertIs(error.code, ResponseCode.LEADER_PENDING_FULL)
        self.group.settle()
        self.group["n0"].holds = lambda _: False
        self.group["n0"].release()
        self.group.settle()
        self.assertEqual(self.group.log, [b"0", b"1", b"2", b"3"])

    def test_small_ones_do_not_overtake(self) -> None:
        """A call that would fit waits after one that does not."""
        self.client.close()
        limits = AppendLimits(pending_bytes_max=100, when_full="wait")
        self.client = self.group.client(limits=limits)
        for body in (bytes(60), bytes(61), b"small"):
            self.submit(body)
        self.group.settle()
        self.assertEqual(self.group.log, [bytes(60), bytes(61), b"small"])

    def test_they_have_a_deadline(self) -> None:
        """A call that waits too long has failed, and is not sent later."""
        self.group["n0"].is_up = False
        for member_id in ("n1", "n2"):
            self.group[member_id].leader_id = None
        outcomes = [self.submit(b"%d" % number) for number in range(4)]
        self.group.run(5.5)
        self.assertEqual([type(outcome[0]) for outcome in outcomes], [AppendWithoutLeader] * 4)
        self.assertEqual(self.client.pending_count, 0)
        self.group.lead("n1")
        self.group.run(1.0)
        self.assertEqual(self.group.log, [])


class RedirectTests(GroupCase):
    """The leader is found, and found again."""

    def test_wrong_member_first(self) -> None:
        """Knowing a follower only is enough."""
        self.client.close()
        self.client = self.group.client(peers={"n1": "n1.test:20911"})
        outcomes = self.submit(b"a")
        self.group.settle()
        self.assertEqual(len(outcomes), 1)
        self.assertEqual(self.group.log, [b"a"])

    def test_a_redirect_is_followed_at_once(self) -> None:
        """NOT_LEADER with a name is followed at once, in order."""
        self.submit(b"a")
        self.group.settle()
        self.group.lead("n2")
        self.submit(b"b", b"c")
        self.group.settle()
        self.assertEqual(self.group.log, [b"a", b"b", b"c"])
        self.assertEqual(self.appends_at("n2"), [(b"b", b"c")])

    def test_redirects_in_a_circle(self) -> None:
        """Members that name each other are asked ever more slowly, not in a tight circle."""
        self.submit(b"a")
        self.group.settle()
        self.group["n0"].leader_id = "n1"
        self.group["n1"].leader_id = "n0"
        self.group["n2"].leader_id = "n0"
        before = len(self.group["n0"].received)
        self.submit(b"b")
        self.group.run(3.0)
        self.assertLess(len(self.group["n0"].received) - before, 40)
        self.group.lead("n2")
        self.group.run(1.5)
        self.assertEqual(self.group.log, [b"a", b"b"])

    def test_highest_term_leads(self) -> None:
        """Of two that say they lead, the one with the higher term is believed."""
        self.group["n2"].leader_id = "n2"
        self.group["n2"].term = 2
        self.submit(b"a")
        self.group.run(0.2)
        self.assertEqual(self.appends_at("n2"), [(b"a",)])

    def test_silent_member_does_not_delay(self) -> None:
        """A member that accepts connections and says nothing is not waited for once a leader is found."""
        self.group["n2"].is_silent = True
        outcomes = self.submit(b"a")
        self.group.run(0.1)
        self.assertEqual(len(outcomes), 1)

    def test_a_dead_leader_is_replaced(self) -> None:
        """What was not sent when the leader died goes to the next one."""
        self.submit(b"a")
        self.group.settle()
        self.group["n0"].is_up = False
        self.group["n0"].lose_connections()
        self.group["n1"].leader_id = self.group["n2"].leader_id = None
        outcomes = self.submit(b"b")
        self.group.run(1.0)
        self.assertEqual(outcomes, [])
        self.group.lead("n1")
        self.group.run(1.5)
        self.assertEqual(len(outcomes), 1)
        self.assertEqual(self.group.log, [b"a", b"b"])

    def test_no_leader_in_time(self) -> None:
        """Without a leader, a call fails at its deadline, and says who was asked and why in vain."""
        for member_id in ("n0", "n1"):
            self.group[member_id].is_up = False
        self.group["n2"].leader_id = None
        outcomes = self.submit(b"a")
        self.group.run(9.8)
        self.assertEqual(outcomes, [])
        self.group.run(0.4)
        (error,) = outcomes
        assert isinstance(error, AppendFailed)
        self.assertIs(error.code, ResponseCode.METADATA_ERROR)
        self.assertIn("n0: connection refused; n1: connection refused", str(error))

    def test_a_wrong_member_is_not_used(self) -> None:
        """A member that is not the one it should be is not used, and named."""
        self.client.close()
        self.client = self.group.client(peers={"n9": "n0.test:20911"}, timeout_s=1.0)
        outcomes = self.submit(b"a")
        self.group.run(1.2)
        self.assertIn("n0.test:20911 is not member 'n9' of group 'default'", str(outcomes[0]))


class RefusalTests(GroupCase):
    """Refusals that pass are repeated, others are reported."""

    def start(self) -> None:
        """One append, so that everybody is connected."""
        self.submit(b"a")
        self.group.settle()

    def test_passing_refusals_are_repeated(self) -> None:
        """Each of these is repeated after a pause until it is taken."""
        self.start()
        for code in (
            ResponseCode.LEADER_PENDING_FULL,
            ResponseCode.LEADER_NOT_READY,
            ResponseCode.LEADER_TRANSFERRING,
            ResponseCode.NOT_LEADER,
            ResponseCode.TOO_MANY_CLIENTS,
        ):
            self.group["n0"].refusals.extend([code] * 3)
            outcomes = self.submit(code.name.encode())
            self.group.settle()
            self.assertEqual(outcomes, [], code)
            self.group.run(1.0)
            self.assertIsInstance(outcomes[0], tuple)
        self.assertEqual(len(self.group.log), 6)

    def test_a_busy_member_is_asked_again(self) -> None:
        """What Java's remoting layer refuses with SYSTEM_BUSY goes again; an unknown code fails."""
        self.start()
        for code, kind in ((2, tuple), (3, AppendFailed)):
            self.group["n0"].remoting_refusals.append(code)
            self.group["n0"].lose_connections()
            self.group["n0"].wire_version = 0
            outcomes = self.submit(b"b")
            self.group.run(1.0)
            self.assertIsInstance(outcomes[0], kind)
        self.assertEqual(self.group.log, [b"a", b"b"])

    def test_final_refusals_are_reported(self) -> None:
        """Each of these comes before anything is written, and stays."""
        self.start()
        for code in (
            ResponseCode.DISK_FULL,
            ResponseCode.UNEXPECTED_ARGUMENT,
            ResponseCode.UNKNOWN_GROUP,
            ResponseCode.UNKNOWN_MEMBER,
            ResponseCode.UNSUPPORTED,
            ResponseCode.REQUEST_WITH_EMPTY_BODYS,
            ResponseCode.FORBIDDEN,
        ):
            self.group["n0"].refusals.append(code)
            outcomes = self.submit(b"b")
            self.group.settle()
            (error,) = outcomes
            assert isinstance(error, AppendFailed)
            self.assertIs(error.code, code)
            self.assertEqual((error.failed, error.unknown), (1, 0))
        self.group.run(1.0)
        self.assertEqual(self.group.log, [b"a"])

    def test_unknown_outcomes_are_not_repeated(self) -> None:
        """Everything else may be in the log: never repeated."""
        self.start()
        known = {"SUCCESS", "NOT_LEADER", "LEADER_PENDING_FULL", "LEADER_NOT_READY", "LEADER_TRANSFERRING",
                 "DISK_FULL", "UNEXPECTED_ARGUMENT", "UNKNOWN_GROUP", "UNKNOWN_MEMBER", "UNSUPPORTED",
                 "REQUEST_WITH_EMPTY_BODYS", "FORBIDDEN", "CONFLICT", "SEQUENCE_GAP",
                 "UNKNOWN_PRODUCER", "MACHINE_STOPPED", "TOO_MANY_CLIENTS", "SEQUENCE_TAKEN",
                 "PRODUCERS_FULL", "PRODUCER_FORGOTTEN", "SHARE_FULL"}
        for code in ResponseCode:
            if code.name in known:
                continue
            self.group["n0"].refusals.append(code)
            outcomes = self.submit(b"b")
            self.group.settle()
            (error,) = outcomes
            self.assertIsInstance(error, UnknownOutcome, code)
            assert isinstance(error, UnknownOutcome)
            self.assertIs(error.code, code)
            self.assertEqual((error.failed, error.unknown), (0, 1))
        self.group.run(1.0)
        self.assertEqual(self.group.log, [b"a"])

    def test_leader_is_doubted(self) -> None:
        """After an unknown outcome, the next append goes to who leads by then."""
        self.start()
        self.group["n1"].leader_id, self.group["n1"].term = "n1", 2
        self.group["n0"].refusals.append(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        self.submit(b"b")
        self.group.settle()
        self.submit(b"c")
        self.group.run(0.5)
        self.assertEqual(self.appends_at("n1"), [(b"c",)])

    def test_smaller_frames_after_pending_full(self) -> None:
        """A leader that cannot take all at once is sent half as many, in order, then more again."""
        self.start()
        leader = self.group["n0"]
        plain = leader.append
        leader.append = (
            lambda request, base: plain(request, base)
            if len(request.bodies) <= 3
            else AppendResponse(code=ResponseCode.LEADER_PENDING_FULL, **base)
        )
        bodies = [b"%d" % number for number in range(10)]
        outcomes = self.submit(*bodies)
        self.group.run(9.0)
        self.assertEqual(self.group.log[1:], bodies)
        self.assertIsInstance(outcomes[0], tuple)

    def test_repeated_until_the_deadline(self) -> None:
        """A refusal that never passes is reported at the deadline, with its code; nothing is in the log."""
        self.start()
        self.group["n0"].refusals.extend([ResponseCode.LEADER_TRANSFERRING] * 100)
        outcomes = self.submit(b"b")
        self.group.run(10.3)
        (error,) = outcomes
        assert isinstance(error, AppendFailed)
        self.assertIs(error.code, ResponseCode.LEADER_TRANSFERRING)
        self.assertIn("gave up after 10 s", str(error))
        self.group["n0"].refusals.clear()
        self.group.run(2.0)
        self.assertEqual(self.group.log, [b"a"])

    def test_answer_for_another_number_of_bodies(self) -> None:
        """An answer that cannot be right costs the connection; the outcome is unknown."""
        self.start()
        self.group["n0"].append = lambda request, base: AppendResponse(
            index=1, pos=0, count=7, **base
        )
        outcomes = self.submit(b"b")
        self.group.settle()
        self.assertTrue(unknown(outcomes[0]))
        self.assertEqual(self.group["n0"].wires, [])


class DeadlineTests(GroupCase):
    """Every call has an outcome in time."""

    options = {"timeout_s": 2.0, "answer_timeout_s": 4.0}

    def test_sent_and_not_answered(self) -> None:
        """At the deadline, what is under way is unknown; a late answer changes nothing."""
        self.group["n0"].holds = is_append
        outcomes = self.submit(b"a")
        self.group.run(1.9)
        self.assertEqual(outcomes, [])
        self.group.run(0.3)
        (error,) = outcomes
        assert isinstance(error, UnknownOutcome)
        self.assertIs(error.code, ResponseCode.TIMEOUT)
        self.group["n0"].release()
        self.group.settle()
        self.assertEqual(len(outcomes), 1)
        self.assertEqual(self.client.pending_count, 0)

    def test_silent_leader_is_left(self) -> None:
        """A connection on which an answer is missing for too long is given up."""
        self.client.close()
        self.client = self.group.client(timeout_s=10.0, answer_timeout_s=3.0)
        self.group["n0"].holds = is_append
        outcomes = self.submit(b"a")
        self.group.run(2.9)
        self.assertEqual(outcomes, [])
        self.group.lead("n1")
        self.group.run(0.3)
        (error,) = outcomes
        assert isinstance(error, UnknownOutcome)
        self.assertIn("not answered within 3 s", str(error))
        later = self.submit(b"b")
        self.group.run(0.5)
        self.assertIsInstance(later[0], tuple)
        self.assertEqual(self.appends_at("n1"), [(b"b",)])

    def test_a_half_sent_call_counts_both_halves(self) -> None:
        """Of a call that is half under way at its deadline, both halves are counted."""
        self.client.close()
        self.client = self.group.client(
            timeout_s=2.0, limits=AppendLimits(frame_count_max=1, frames_in_flight_max=2)
        )
        self.group["n0"].holds = is_append
        outcomes = self.submit(b"a", b"b", b"c")
        self.group.run(2.2)
        (error,) = outcomes
        assert isinstance(error, UnknownOutcome)
        self.assertEqual((error.unknown, error.failed), (2, 1))

    def test_refused_and_held(self) -> None:
        """A held refusal at its deadline is a failure, not unknown; it is not sent later."""
        self.client.close()
        self.client = self.group.client(
            timeout_s=2.0, answer_timeout_s=9.0, limits=AppendLimits(frame_count_max=1)
        )
        self.group["n0"].holds = is_append
        first, second = self.submit(b"a"), self.submit(b"b")
        self.group.settle()
        self.group["n0"].held.pop(1).send(AppendResponse(code=ResponseCode.NOT_LEADER, group="default"))
        self.group.run(2.2)
        self.assertIsInstance(first[0], UnknownOutcome)
        self.assertIsInstance(second[0], AppendFailed)
        self.group["n0"].holds = lambda _: False
        self.group["n0"].release()
        self.group.run(1.0)
        self.assertEqual(self.group.log, [b"a"])

    def test_closing_gives_every_call_an_outcome(self) -> None:
        """What was sent when the client is closed is unknown, the rest has failed."""
        self.group["n0"].holds = is_append
        sent = self.submit(b"a")
        self.group.settle()
        waiting = self.submit(b"b")
        self.client.close()
        self.assertIsInstance(sent[0], UnknownOutcome)
        self.assertIsInstance(waiting[0], AppendFailed)
