# -*- test-case-name: tests.node.test_readers -*-
"""READER at a member."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.requests import readers
from dledger.node.requests.appends import AppendResult
from dledger.node.requests.readers import (
    ASKED_MAX,
    ASKED_OF_ONE_MAX,
    LISTS_MAX,
    PAGE_MAX,
    SHOWN_MAX,
    SLICE_MAX,
    Asker,
)
from dledger.values.errors import DLedgerError
from dledger.values.ledger import reader_table
from dledger.values.ledger.config import READER_BYTES_HELD
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import iterate_records
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse
from protocols.wire.ledger.own.own_entries import READER_CHANNEL
from protocols.wire.ledger.readers import NO_END, ReaderState, decode_reader_entry, decode_readers
from tests.node.rig import Rig


class ReaderCase(SynchronousTestCase):
    """A member that leads alone, with ten entries after its first one, and a client."""

    def setUp(self) -> None:
        self.rig = Rig().lead()
        self.client = self.rig.client("127.0.0.1")
        self.rig.node.append([b"%d" % number for number in range(10)])
        self.pass_time()

    def pass_time(self, seconds: float = 0.0) -> None:
        """Turns of the reactor, and ticks."""
        self.rig.clock.pump([0.0] * 5)
        for _ in range(int(seconds / 0.02)):
            self.rig.clock.advance(0.02)

    def ask(self, does: str, name: str = "billing", **fields: Any) -> ReaderResponse:
        """One request."""
        if does == "take":
            fields = {"holder": "p1", "lease_ms": 1000, **fields}
        self.client.send(ReaderRequest(**self.rig.base(), does=does, name=name, **fields))
        self.pass_time()
        (answer,) = self.client.answers()
        assert isinstance(answer, ReaderResponse)
        return answer

    def good(self, does: str, name: str = "billing", **fields: Any) -> ReaderResponse:
        """One that succeeds."""
        answer = self.ask(does, name, **fields)
        self.assertIs(answer.code, ResponseCode.SUCCESS, answer.reason)
        return answer

    def refused(
        self, code: ResponseCode, reason: str, does: str, name: str = "billing", **fields: Any
    ) -> None:
        """One that does not; its reason has these words."""
        end = self.end
        answer = self.ask(does, name, **fields)
        self.assertIs(answer.code, code, answer.reason)
        self.assertIn(reason, answer.reason)
        self.assertEqual(self.end, end, "a refusal has written something")

    @property
    def end(self) -> int:
        """Committed index."""
        return self.rig.node.committed_index


class LeaseTests(ReaderCase):
    """Take, renew, commit, release."""

    def test_a_lease_lives_and_ends(self) -> None:
        """The place is kept; the token is the index of the entry that gave it."""
        begin_end = self.end
        taken = self.good("take")
        self.assertEqual((taken.begin_index, taken.end_index), (0, NO_END))
        self.assertEqual(taken.token, begin_end + 1)
        self.assertEqual(self.good("commit", token=taken.token, index=4).next_index, 5)
        self.good("release", token=taken.token)
        again = self.good("take", holder="p2")
        self.assertEqual(again.begin_index, 5)
        self.assertGreater(again.token, taken.token)

    def test_entries_are_control(self) -> None:
        """What readers write has a channel, and one entry each."""
        self.good("take")
        batch = self.rig.node.read_committed(self.end, max_bytes=1)
        assert batch is not None
        ((header, body),) = iterate_records(batch)
        self.assertEqual(header.channel, READER_CHANNEL)
        self.assertEqual(decode_reader_entry(body).name, "billing")

    def test_a_repeated_request_writes_nothing(self) -> None:
        """Each request may come twice; the second one writes nothing."""
        first = self.good("take")
        end = self.end
        self.assertEqual(self.good("take").token, first.token)
        self.assertEqual(self.end, end)
        for _ in range(2):
            self.assertEqual(self.good("commit", token=first.token, index=3).next_index, 4)
            self.assertEqual(self.end, end + 1)
        for _ in range(2):
            self.good("release", token=first.token)
            self.assertEqual(self.end, end + 2)
        for _ in range(2):
            self.assertEqual(self.good("move", index=2).next_index, 2)
            self.assertEqual(self.end, end + 3)
        for _ in range(2):
            self.good("forget")
            self.assertEqual(self.end, end + 4)

    def test_a_held_lease_is_waited_for(self) -> None:
        """Another process waits for the end of the lease; a renewal makes that later."""
        token = self.good("take").token
        self.refused(ResponseCode.LEASE_HELD, "p1 reads as billing", "take", holder="p2")
        self.pass_time(0.6)
        self.good("renew", token=token)
        self.pass_time(0.6)
        self.refused(ResponseCode.LEASE_HELD, "p1", "take", holder="p2")
        self.pass_time(0.6)
        self.assertGreater(self.good("take", holder="p2").token, token)

    def test_a_lost_lease_is_fenced(self) -> None:
        """A process that has lost its lease cannot commit, renew or give anything back."""
        token = self.good("take").token
        self.pass_time(1.2)
        late = self.good("take", holder="p2")
        self.refused(ResponseCode.LEASE_LOST, "another process", "commit", token=token, index=2)
        self.refused(ResponseCode.LEASE_LOST, "another process", "renew", token=token)
        end = self.end
        self.good("release", token=token)
        self.assertEqual(self.end, end)
        self.assertEqual(self.good("commit", token=late.token, index=9).next_index, 10)

    def test_a_move_ends_leases(self) -> None:
        """The process that read is refused, and the reason names the operator's move."""
        token = self.good("take").token
        self.good("move", index=2)
        moved = "an operator has moved the reader"
        self.refused(ResponseCode.LEASE_LOST, moved, "commit", token=token, index=3)

    def test_a_lease_needs_its_secret(self) -> None:
        """The token and the id of the process are in the log, and prove nothing; the secret is not there."""
        taken = self.good("take", secret="mine")
        for secret in ("", "theirs"):
            self.refused(ResponseCode.LEASE_HELD, "p1", "take", secret=secret)
            for does in ("commit", "renew"):
                self.refused(ResponseCode.LEASE_LOST, "", does, token=taken.token, index=3, secret=secret)
            end = self.end
            self.good("release", token=taken.token, secret=secret)
            self.assertEqual(self.end, end)
        self.assertEqual(self.good("take", secret="mine").token, taken.token)
        self.assertEqual(self.good("commit", token=taken.token, index=3, secret="mine").next_index, 4)
        for index in range(self.end + 1):
            batch = self.rig.node.read_committed(index, max_bytes=1)
            assert batch is not None
            self.assertNotIn(b"mine", batch.records)

    def test_a_reader_belongs_to_its_account(self) -> None:
        """Others are refused, whatever they ask, except an operator, who moves and forgets it."""
        alice, bob, admin = Asker("alice", False), Asker("bob", False), Asker("admin", True)
        self.asker, handler = alice, self.rig.node.handlers.readers
        ask = handler.ask
        self.patch(handler, "ask", lambda connection, ticket, request, _: ask(
            connection, ticket, request, self.asker
        ))
        token = self.good("take").token
        for other in (bob, admin):
            self.asker = other
            for does in ("take", "commit", "release"):
                self.refused(ResponseCode.FORBIDDEN, "another account", does, token=token, holder="p2",
                             index=3)
        self.asker = bob
        for does in ("move", "forget"):
            self.refused(ResponseCode.FORBIDDEN, "another account", does, index=2)
        self.asker = alice
        self.assertEqual(self.good("commit", token=token, index=4).next_index, 5)
        self.asker = admin
        self.assertEqual(self.good("move", index=2).next_index, 2)
        self.asker = bob
        self.refused(ResponseCode.FORBIDDEN, "another account", "take", holder="p2")
        self.asker = admin
        self.good("forget")
        self.asker = bob
        self.good("take", holder="p2")
        self.good("move", index=3)

    def test_a_reader_of_nobody_is_moved_by_operators(self) -> None:
        """An account reads under it; only an operator moves or forgets it."""
        self.good("take")
        handler = self.rig.node.handlers.readers
        self.asker, ask = Asker("bob", False), handler.ask
        self.patch(handler, "ask", lambda connection, ticket, request, _: ask(
            connection, ticket, request, self.asker
        ))
        self.good("take")
        for does in ("move", "forget"):
            self.refused(ResponseCode.FORBIDDEN, "operator", does, index=2)
        self.asker = Asker("admin", True)
        self.good("forget")

    def test_late_but_alone(self) -> None:
        """A lease that is over still commits while nobody else has the entries."""
        token = self.good("take").token
        self.pass_time(30)
        self.assertEqual(self.good("commit", token=token, index=2).next_index, 3)

    def new_leader(self) -> None:
        """As in a new term: nothing that came from a process is known."""
        self.rig.node.handlers.readers._leases.begin(99)

    def test_a_new_leader_goes_on_with_what_is_left(self) -> None:
        """Two fifths of a lease are noted when they are over, then smaller steps; a shorter time is not."""
        token, end = self.good("take").token, self.end
        self.pass_time(0.3)
        self.new_leader()
        self.assertEqual(self.end, end)
        self.pass_time(0.7)
        self.assertGreater(self.end, end)
        self.new_leader()
        self.refused(ResponseCode.LEASE_HELD, "p1", "take", holder="p2")
        self.pass_time(0.7)
        self.assertGreater(self.good("take", holder="p2").token, token)

    def test_leases_end_under_many_leaders(self) -> None:
        """Of leaders that last shorter each one notes its count, if the last entry is old."""
        self.patch(readers, "STORM_TERMS", 0)
        token, seconds = self.good("take", lease_ms=8000).token, 0.0
        while seconds < 18.0 and self.ask("take", holder="p2").code is ResponseCode.LEASE_HELD:
            self.new_leader()
            self.pass_time(1.2)
            seconds += 1.2
        self.assertLess(seconds, 16.0)
        self.refused(ResponseCode.LEASE_LOST, "", "renew", token=token)

    def test_nothing_is_noted_of_the_living(self) -> None:
        """Whose renewals come in time; and of an end that was noted nothing more is written."""
        token = self.good("take").token
        end = self.end
        for _ in range(9):
            self.pass_time(0.34)
            self.good("renew", token=token)
        self.assertEqual(self.end, end)
        self.pass_time(2.0)
        ended = self.end
        self.assertLessEqual(ended - end, 8, "with sweeps five times a second")
        self.pass_time(60.0)
        self.assertEqual(self.end, ended)

    def test_a_silent_process_that_comes_back_has_its_whole_lease(self) -> None:
        """Its answer comes when the log says so, for every kind of request that finds its lease."""
        token = self.good("take").token
        for does, fields in (
            ("renew", {}), ("take", {}), ("commit", {"index": -1}), ("commit", {"index": 2}),
        ):
            self.pass_time(0.8)
            end = self.end
            self.good(does, **{"token": token, **fields})
            self.assertEqual(self.end, end + 1, does)
            self.new_leader()
            self.pass_time(0.3)
            self.refused(ResponseCode.LEASE_HELD, "p1", "take", holder="p2")
        self.assertEqual(self.good("commit", token=token, index=2).next_index, 3)

    def test_a_renewal_outlasts_what_is_not_known(self) -> None:
        """An entry with an unknown outcome may still say that the process was silent: its renewal is one."""
        token, handler = self.good("take").token, self.rig.node.handlers.readers
        append = handler.append
        for code, entries in ((ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, 1), (ResponseCode.DISK_FULL, 0)):
            handler.append = lambda _, code=code: fail(DLedgerError(code))
            self.pass_time(0.6)
            handler.append, end = append, self.end
            self.good("renew", token=token)
            self.assertEqual(self.end, end + entries)

    def test_two_shares_have_different_entries(self) -> None:
        """Two processes have different entries; all before the first one that is not done counts."""
        one = self.good("take", share=4)
        two = self.good("take", holder="p2", share=4)
        self.assertEqual((one.begin_index, one.end_index, two.begin_index, two.end_index), (0, 4, 4, 8))
        self.assertEqual(self.good("commit", token=two.token, index=7).next_index, 0)
        self.assertEqual(self.good("commit", token=one.token, index=3).next_index, 8)
        third = self.good("take", share=100)
        self.assertEqual((third.begin_index, third.end_index), (8, self.end))
        self.refused(ResponseCode.LEASE_HELD, "p1", "take", holder="p3")

    def test_nothing_to_share(self) -> None:
        """At the end of the log there is no part, and nothing is written."""
        self.good("move", index=NO_END)
        self.rig.node.append(b"x")
        self.pass_time()
        self.good("take", share=9)
        end = self.end
        self.assertEqual(self.good("take", holder="p2", share=9).token, -1)
        self.assertEqual(self.end, end)

    def test_comes_to_rest(self) -> None:
        """A process that takes shares and commits them writes nothing more once it has read all."""
        ends = []
        for _ in range(8):
            taken = self.good("take", share=3)
            if taken.token >= 0:
                self.good("commit", token=taken.token, index=taken.end_index - 1)
            ends.append(self.end)
        self.assertEqual(ends[-1], ends[-2])
        self.rig.node.append(b"x")
        self.pass_time()
        self.assertGreaterEqual(self.good("take", share=3).token, 0)

    def test_shares_count_entries_of_programs(self) -> None:
        """Entries that come one by one make two entries of the reader each, however many came before."""
        self.test_comes_to_rest()
        begin = self.end
        for _ in range(12):
            self.rig.node.append(b"x")
            self.pass_time()
            for _ in range(4):
                taken = self.good("take", share=1)
                if taken.token >= 0:
                    self.good("commit", token=taken.token, index=taken.end_index - 1)
        self.assertLessEqual(self.end - begin, 12 * 3 + 2)

    def test_new_share_at_the_end(self) -> None:
        """A reader begins where it says when it asks first, though there is nothing to read yet."""
        self.assertEqual(self.good("take", "late", index=NO_END, share=5).token, -1)
        self.rig.node.append([b"x", b"y"])
        self.pass_time()
        taken = self.good("take", "late", index=NO_END, share=5)
        self.assertEqual(taken.begin_index, self.end - 3)

    def test_an_abandoned_share_goes_on(self) -> None:
        """A part whose lease is over goes to the next process, from where the first one has come to."""
        one = self.good("take", share=4)
        self.good("commit", token=one.token, index=1)
        self.pass_time(1.2)
        two = self.good("take", holder="p2", share=4)
        self.assertEqual((two.begin_index, two.end_index), (2, 4))


class RefusalTests(ReaderCase):
    """Bad requests."""

    def test_wrong_names_are_refused(self) -> None:
        """Length, and what is printable."""
        for name in ("", "x" * 65, "ä" * 33, "a\nb", " a", "\x7f"):
            self.refused(ResponseCode.UNEXPECTED_ARGUMENT, "the name of a reader", "take", name)
            self.refused(ResponseCode.UNEXPECTED_ARGUMENT, "the name of a reader", "commit", name)
        self.refused(ResponseCode.UNEXPECTED_ARGUMENT, "id of a process", "take", holder="")

    def test_wrong_numbers_are_refused(self) -> None:
        """Leases and shares within their bounds."""
        for lease_ms in (0, 499, 3_600_001):
            self.refused(ResponseCode.UNEXPECTED_ARGUMENT, "500 to 3600000", "take", lease_ms=lease_ms)
        for share in (-1, 1_000_001):
            self.refused(ResponseCode.UNEXPECTED_ARGUMENT, "share", "take", share=share)
        self.refused(ResponseCode.UNEXPECTED_ARGUMENT, "does='dance'", "dance")

    def test_wrong_places_are_refused(self) -> None:
        """Beyond the end, back, before the lease."""
        self.refused(ResponseCode.INDEX_OUT_OF_RANGE, "the log ends with", "take", index=1000)
        self.refused(ResponseCode.INDEX_OUT_OF_RANGE, "the log ends with", "move", index=1000)
        token = self.good("take").token
        self.refused(ResponseCode.INDEX_OUT_OF_RANGE, "is not in the log", "commit", token=token, index=1000)
        self.good("commit", token=token, index=5)
        self.refused(
            ResponseCode.UNEXPECTED_ARGUMENT, "a reader does not go back", "commit", token=token, index=4
        )
        self.refused(ResponseCode.LEASE_LOST, "is over", "commit", token=token + 1, index=6)
        self.refused(ResponseCode.LEASE_LOST, "does not know", "commit", "other", token=token, index=6)
        self.refused(ResponseCode.LEASE_LOST, "does not know", "renew", "other", token=token)

    def test_beyond_a_share(self) -> None:
        """A process commits its own entries only."""
        token = self.good("take", share=3).token
        self.refused(ResponseCode.UNEXPECTED_ARGUMENT, "before 3", "commit", token=token, index=3)

    def set_room(self, readers: int, of_one: int) -> None:
        """There is room for this number of readers, and of those of one owner, but not for one more."""
        cost = reader_table.reader_bytes(ReaderState("r0", -1, 0, owner=self.owner))
        self.patch(reader_table, "ALL_BYTES_MAX", readers * cost)
        self.patch(reader_table, "SHARE_BYTES_MAX", of_one * cost)
        self.patch(reader_table, "FORGOTTEN_BYTES_MAX", cost)

    @property
    def owner(self) -> str:
        """Of this client."""
        return self.rig.node.router.access.owner_of(self.client.connection)

    def test_the_readers_of_all_are_bounded(self) -> None:
        """One that is forgotten makes room; those that are known go on."""
        self.set_room(4, 4)
        for number in range(4):
            self.good("move", f"r{number}")
        for does in ("take", "move"):
            self.refused(ResponseCode.READERS_FULL, "forget some", does, "r9")
        token = self.good("take", "r3", share=1).token
        self.refused(ResponseCode.READERS_FULL, "forget some", "take", "r3", holder="p2", share=1)
        self.good("commit", "r3", token=token, index=0)
        self.good("forget", "r2")
        self.good("take", "r9")

    def test_the_readers_of_one_owner_are_bounded(self) -> None:
        """They have half of the room; another address has the rest."""
        self.set_room(4, 2)
        self.good("move", "r0")
        self.good("move", "r1")
        self.refused(ResponseCode.SHARE_FULL, self.owner, "take", "r2")
        self.client = self.rig.client("10.0.0.7")
        self.good("take", "r2")

    def test_readers_that_are_begun_at_once(self) -> None:
        """What the leader has judged by an earlier state finds no room all the same."""
        self.set_room(1, 1)
        handler = self.rig.node.handlers.readers
        append, later = handler.append, Deferred[None]()
        handler.append = lambda body: later.addCallback(lambda _: append(body))  # type: ignore[return-value]
        for name in ("r0", "r1"):
            self.client.send(ReaderRequest(
                **self.rig.base(), does="take", name=name, holder="p1", lease_ms=1000
            ))
        self.pass_time()
        later.callback(None)
        self.pass_time()
        codes = [answer.code for answer in self.client.answers()]
        self.assertEqual(codes, [ResponseCode.SUCCESS, ResponseCode.LEADER_NOT_READY])
        self.refused(ResponseCode.READERS_FULL, "", "take", "r1")

    def test_a_follower_keeps_no_readers(self) -> None:
        """A member that does not lead keeps no readers."""
        rig = Rig(peers="n0-127.0.0.1:1;n1-127.0.0.1:2")
        rig.node.start()
        client = rig.client()
        client.send(ReaderRequest(**rig.base(), does="take", name="a", holder="p", lease_ms=1000))
        client.send(ReaderRequest(**rig.base(), does="renew", name="a", token=1))
        rig.clock.pump([0.0] * 5)
        self.assertEqual([one.code for one in client.answers()], [ResponseCode.NOT_LEADER] * 2)

    def test_damaged_entries_stop_readers(self) -> None:
        """While entries are damaged that may report readers, nothing is answered, and expiry keeps all."""
        self.good("take")
        self.rig.store.parts.state._lack("an entry is damaged")
        self.refused(ResponseCode.LEADER_NOT_READY, "damaged", "take")
        self.refused(ResponseCode.LEADER_NOT_READY, "damaged", "list", "")
        self.assertEqual(self.rig.node.handlers.readers.needed_index(), -1)
        self.assertEqual(self.rig.node.status().readers, ())

    def test_damaged_everywhere_gone(self) -> None:
        """Expiry takes damaged entries that no other member has any more: nobody can give them back."""
        self.good("take")
        self.rig.store.parts.state._lack("an entry is damaged")
        with mock.patch("dledger.core.replication.hole_repair.HoleRepair.gone_elsewhere_index", 7):
            self.assertEqual(self.rig.node.handlers.readers.needed_index(), 7)

    def test_too_many_requests_are_refused(self) -> None:
        """Too many at once are refused before anything is done."""
        self.rig.node.handlers.readers._asked = ASKED_MAX
        self.refused(ResponseCode.LEADER_PENDING_FULL, "", "take")

    def test_one_connection_has_a_share(self) -> None:
        """What one asks at once keeps no other one from being answered; afterwards it may ask again."""
        request = ReaderRequest(**self.rig.base(), does="take", name="a", holder="p", lease_ms=1000)
        self.client.send(*[request] * (ASKED_OF_ONE_MAX + 3))
        other = self.rig.client("127.0.0.1")
        other.send(request)
        self.pass_time(1.0)
        refused = [one for one in self.client.answers() if one.code is ResponseCode.LEADER_PENDING_FULL]
        self.assertGreaterEqual(len(refused), 2)
        self.assertIn(f"{ASKED_OF_ONE_MAX} of this connection", refused[0].reason)
        (answer,) = other.answers()
        self.assertIs(answer.code, ResponseCode.SUCCESS)
        self.good("take", "a", holder="p")
        self.assertEqual(self.rig.node.handlers.readers._asked_by, {})

    def test_a_log_of_a_broker_has_no_readers(self) -> None:
        """A log to which a broker alone appends keeps no readers."""
        self.rig.node.handlers.readers.append = None
        self.refused(ResponseCode.UNSUPPORTED, "a broker alone", "take")


class PlaceTests(ReaderCase):
    """Begin, move, forget, list, lag."""

    def test_a_new_reader_begins_where_it_says(self) -> None:
        """A reader that is not known begins where it says; one that is known does not."""
        end = self.end
        for name, index, begin in (("a", 3, 3), ("b", -2, end), ("c", NO_END, end + 3), ("d", -1000, 0)):
            self.assertEqual(self.good("take", name, index=index).begin_index, begin, name)
        self.assertEqual(self.good("take", "a", index=7).begin_index, 3)

    def test_move_and_forget(self) -> None:
        """Both end the leases; a reader that was forgotten begins anew, and its old tokens stay void."""
        token = self.good("take").token
        self.good("commit", token=token, index=8)
        self.assertEqual(self.good("move", index=2).next_index, 2)
        self.refused(ResponseCode.LEASE_LOST, "is over", "commit", token=token, index=9)
        token = self.good("take").token
        self.good("forget")
        self.refused(ResponseCode.LEASE_LOST, "does not know", "commit", token=token, index=9)
        again = self.good("take")
        self.assertEqual(again.begin_index, 0)
        self.assertGreater(again.token, token)
        self.refused(ResponseCode.LEASE_LOST, "is over", "commit", token=token, index=9)

    def test_few_lists_are_under_way(self) -> None:
        """And one is made for each state of the log, however many ask for it."""
        self.good("take")
        handler, made = self.rig.node.handlers.readers, list[int]()
        infos = handler._infos
        self.patch(handler, "_infos", lambda readers: made.append(1) or infos(readers))
        for _ in range(50):
            self.client.send(ReaderRequest(**self.rig.base(), does="list"))
        self.pass_time()
        codes = [answer.code for answer in self.client.answers()]
        self.assertEqual(Counter(codes), {ResponseCode.SUCCESS: LISTS_MAX,
                                          ResponseCode.LEADER_PENDING_FULL: 50 - LISTS_MAX})
        self.assertEqual(len(made), 1)
        self.good("list", "")
        self.assertEqual(len(made), 1)
        self.good("move", index=3)
        (one,) = decode_readers(self.good("list", "").readers)
        self.assertEqual((one.next_index, len(made)), (3, 2))

    def test_the_list_comes_in_pages(self) -> None:
        """By name, none twice; the status has those that are furthest behind."""
        for number in range(2 * PAGE_MAX + 3):
            self.good("move", f"r{number:03d}", index=number % 11)
        found, last, more = list[str](), "", -1
        while more:
            answer = self.good("list", last)
            page = [one.name for one in decode_readers(answer.readers)]
            self.assertLessEqual(len(page), PAGE_MAX)
            found += page
            last, more = page[-1], answer.more
            self.assertEqual(len(found) + more, 2 * PAGE_MAX + 3)
        self.assertEqual(found, [f"r{number:03d}" for number in range(2 * PAGE_MAX + 3)])
        status = self.rig.node.status()
        self.assertEqual((len(status.readers), status.reader_count), (SHOWN_MAX, 2 * PAGE_MAX + 3))
        self.assertLessEqual(max(one.next_index for one in status.readers), 11 * SHOWN_MAX // 131 + 1)
        self.assertEqual(self.good("list", "r999").more, 0)

    def test_a_page_of_many_processes_is_shorter(self) -> None:
        """Each process counts as a reader."""
        for name in ("a", "b", "c"):
            for number in range(10):
                self.good("take", name, holder=f"p{number}", share=1)
        self.patch(readers, "PAGE_MAX", 23)
        answer = self.good("list", "")
        self.assertEqual(([one.name for one in decode_readers(answer.readers)], answer.more), (["a", "b"], 1))

    def test_the_list_has_each_lag(self) -> None:
        """Lag does not count what readers write."""
        token = self.good("take").token
        self.good("take", "audit", share=3)
        rows = decode_readers(self.good("list", "").readers)
        self.assertEqual([(one.name, one.next_index, one.lag, one.holders) for one in rows], [
            ("audit", 0, 10, ("p1",)), ("billing", 0, 10, ("p1",)),
        ])
        store = self.rig.store
        self.assertEqual({one.lag_bytes for one in rows}, {store.end_position - store.position_of(0)})
        self.good("commit", token=token, index=9)
        self.good("release", token=token)
        status = {one.name: one for one in self.rig.node.status().readers}
        self.assertEqual((status["billing"].lag, status["billing"].holders), (0, ()))
        self.assertEqual(status["billing"].lag_bytes, 0)
        self.rig.node.append(b"more")
        self.pass_time()
        self.assertEqual({one.name: one.lag for one in self.rig.node.status().readers}["billing"], 1)


class SweepTests(SynchronousTestCase):
    """Notes about leases."""

    def test_notes_about_forgotten_readers_go(self) -> None:
        """What is noted of a reader goes with it, slice after slice."""
        rig = Rig().lead()
        names = [f"r{number}" for number in range(SLICE_MAX + 20)]
        leases = rig.node.handlers.readers._leases

        def ask(does: str) -> None:
            for name in names:
                rig.client("127.0.0.1").send(ReaderRequest(**rig.base(), does=does, name=name, index=0))
                rig.clock.pump([0.02] * 10)
            rig.clock.pump([0.02] * 2000)

        ask("move")
        self.assertEqual(set(leases._counts), set(names))
        ask("forget")
        self.assertEqual(leases._counts, {})


class OrderTests(ReaderCase):
    """Decisions about one reader, one at a time."""

    def test_one_at_a_time(self) -> None:
        """Two processes that ask in one turn do not both get the log."""
        handler = self.rig.node.handlers.readers
        append, later = handler.append, Deferred[None]()
        handler.append = lambda body: later.addCallback(lambda _: append(body))  # type: ignore[return-value]
        for holder in ("p1", "p2", "p3"):
            self.client.send(ReaderRequest(
                **self.rig.base(), does="take", name="billing", holder=holder, lease_ms=1000
            ))
        self.pass_time()
        later.callback(None)
        self.pass_time()
        codes = [answer.code for answer in self.client.answers()]
        self.assertEqual(codes, [ResponseCode.SUCCESS, ResponseCode.LEASE_HELD, ResponseCode.LEASE_HELD])
        self.assertEqual(self.rig.node.handlers.readers.under_way, {})

    def test_many_that_fail_at_once(self) -> None:
        """A thousand requests about one reader wait; when the leader steps down, each is answered."""
        first: Deferred[AppendResult] = Deferred()
        waits = [first]
        lost = DLedgerError(ResponseCode.NOT_LEADER)
        handler = self.rig.node.handlers.readers
        handler.append = lambda _body: waits.pop() if waits else fail(lost)
        clients = [self.rig.client("127.0.0.1") for _ in range(10)]
        request = ReaderRequest(**self.rig.base(), does="take", name="billing", holder="p", lease_ms=1000)
        for client in clients:
            client.send(*[request] * 100)
        self.pass_time()
        self.assertEqual([client.answers() for client in clients], [[]] * 10)
        first.errback(lost)
        self.pass_time()
        answers = [answer.code for client in clients for answer in client.answers()]
        self.assertEqual(answers, [ResponseCode.NOT_LEADER] * 1000)
        self.assertEqual(handler.under_way, {})

    def test_renewed_too_late(self) -> None:
        """A lease is not renewed whose entries are being given to another process."""
        token = self.good("take").token
        self.pass_time(1.2)
        handler = self.rig.node.handlers.readers
        append, later = handler.append, Deferred[None]()
        handler.append = lambda body: later.addCallback(lambda _: append(body))  # type: ignore[return-value]
        self.client.send(ReaderRequest(
            **self.rig.base(), does="take", name="billing", holder="p2", lease_ms=1000
        ))
        self.pass_time()
        self.client.send(ReaderRequest(**self.rig.base(), does="renew", name="billing", token=token))
        self.pass_time()
        self.assertEqual(self.client.answers(), [])
        later.callback(None)
        self.pass_time()
        codes = [answer.code for answer in self.client.answers()]
        self.assertEqual(codes, [ResponseCode.SUCCESS, ResponseCode.LEASE_LOST])

    def test_renewed_in_time(self) -> None:
        """A renewal counts when it comes, also while something earlier is under way."""
        token = self.good("take").token
        self.pass_time(0.9)
        handler = self.rig.node.handlers.readers
        read_index, later = handler.reads.read_index, Deferred[None]()
        self.patch(handler.reads, "read_index", lambda: later.addCallback(lambda _: read_index()))
        for does, fields in (("take", {"holder": "p2", "lease_ms": 1000}), ("renew", {"token": token})):
            self.client.send(ReaderRequest(
                **self.rig.base(), does=does, name="billing", **fields  # type: ignore[arg-type]
            ))
        self.pass_time(0.5)
        later.callback(None)
        self.pass_time()
        codes = [answer.code for answer in self.client.answers()]
        self.assertEqual(codes, [ResponseCode.LEASE_HELD, ResponseCode.SUCCESS])

    def test_a_deposed_leader_renews_nothing(self) -> None:
        """A leader that cannot prove that it leads renews nothing: a later one may have given it away."""
        token = self.good("take").token
        lost = DLedgerError(ResponseCode.NOT_LEADER)
        self.patch(self.rig.node.handlers.readers.reads, "read_index", lambda: fail(lost))
        self.refused(ResponseCode.NOT_LEADER, "", "renew", token=token)

    def test_a_deposed_leader_says_nothing_from_what_it_knew(self) -> None:
        """What needs no entry, refusals too, needs a proof; a decision that is written proves itself."""
        token = self.good("take").token
        self.good("commit", token=token, index=3)
        lost = DLedgerError(ResponseCode.NOT_LEADER)
        self.patch(self.rig.node.handlers.readers.reads, "read_index", lambda: fail(lost))
        self.refused(ResponseCode.NOT_LEADER, "", "take", holder="p2")
        self.refused(ResponseCode.NOT_LEADER, "", "commit", token=token, index=3)
        self.refused(ResponseCode.NOT_LEADER, "", "commit", token=token + 1, index=5)
        self.assertEqual(self.good("commit", token=token, index=5).next_index, 6)

    def test_a_void_decision_is_not_answered(self) -> None:
        """A decision that does not count, because another one came first, is not answered as made."""
        token = self.good("take").token
        handler = self.rig.node.handlers.readers
        append = handler.append

        def with_another_first(body: bytes) -> Any:
            handler.append = append
            append(body)  # as one of an earlier try whose outcome was not known
            return append(body)

        handler.append = with_another_first
        answer = self.ask("commit", token=token, index=3)
        self.assertIs(answer.code, ResponseCode.LEADER_NOT_READY)
        self.assertEqual(self.good("commit", token=token, index=3).next_index, 4)


class KeepingTests(ReaderCase):
    """Expiry, and entries that come again."""

    def test_entries_that_readers_need_stay(self) -> None:
        """The first entry that a reader has not done stays, and so does the entry that says so."""
        handler = self.rig.node.handlers.readers
        self.assertGreater(handler.needed_index(), self.end)
        token = self.good("take").token
        self.assertEqual(handler.needed_index(), -1)
        self.good("commit", token=token, index=6)
        self.assertEqual(handler.needed_index(), 6)
        self.assertEqual(self.rig.node.handlers.keep_from_index(), 7)
        self.good("forget")
        self.assertGreater(handler.needed_index(), self.end)

    def test_a_nearly_full_disk(self) -> None:
        """No reader keeps anything then; an event says so if one did."""
        handler, store = self.rig.node.handlers.readers, self.rig.store
        token = self.good("take").token
        self.assertEqual(self.rig.node.handlers.keep_from_index(), 0)
        with mock.patch.object(type(store), "disk_nearly_full", True):
            self.assertEqual(self.rig.node.handlers.keep_from_index(), self.end + 1)
            self.assertEqual(self.rig.node.status().counts.reports["readers-let-go"], 1)
            self.good("commit", token=token, index=self.end)
            self.good("release", token=token)
            self.good("move", index=NO_END)
            self.rig.node.handlers.keep_from_index()
            self.assertEqual(self.rig.node.status().counts.reports["readers-let-go"], 1)
        self.assertEqual(handler.needed_index(), self.end - 1)

    def test_needed_entries_stay_within_a_bound(self) -> None:
        """No further than the bound: then the reader learns that its entries are gone."""
        handler = self.rig.node.handlers.readers
        self.good("take")
        self.rig.node.append([b"x" * 100] * 20)
        self.pass_time()
        handler.hold_bytes = 10 * 148 + 20
        self.assertEqual(handler.needed_index(), self.end - 10)
        handler.hold_bytes = 1
        self.assertEqual(handler.needed_index(), self.end)
        for options, hold_bytes in (
            ({}, READER_BYTES_HELD), ({"retention_bytes": 1000}, 2000), ({"readers_hold_bytes": 0}, 0),
            ({"readers_hold_bytes": 7, "retention_bytes": 1000}, 7),
        ):
            handler.reread(attrs.evolve(self.rig.config, **options))
            self.assertEqual(handler.hold_bytes, hold_bytes)
        handler.hold_bytes = 0
        self.assertEqual(handler.needed_index(), -1)
        handler.hold_bytes = 10**9
        self.assertEqual(handler.needed_index(), -1)
