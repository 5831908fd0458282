# -*- test-case-name: tests.client.test_readers -*-
"""Named readers at scripted members, whose leader decides by the rules of real ones."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.client import LogClient
from dledger.client.errors import Expired, LeaseHeld, LeaseLost, NotYet, Timeout
from dledger.client.readers import NamedReader, ReaderCalls
from dledger.client.values import Entry
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse, Request
from protocols.wire.ledger.readers import NO_END
from tests.client.fakes import FakeGroup
from tests.client.test_blocking import LiveGroup

_T = TypeVar("_T")


class ReaderCase(SynchronousTestCase):
    """A group with ten entries, and two clients."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.group.log += [b"%d" % number for number in range(10)]
        self.clients = [self.group.client(timeout_s=5.0) for _ in range(2)]
        self.addCleanup(self.close)

    def close(self) -> None:
        """Nothing is left running."""
        for client in self.clients:
            client.close()
        self.group.run(0.1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def reader(self, who: int = 0, **options: Any) -> NamedReader:
        """Of one client."""
        return self.clients[who].reader(**{"name": "billing", "lease_s": 1.0, "holder": f"p{who}", **options})

    def begin(self, story: Coroutine[Any, Any, _T]) -> Deferred[_T]:
        """Run a story; time does not pass."""
        done = Deferred.fromCoroutine(story)
        self.group.settle()
        return done

    def done(self, waiting: Coroutine[Any, Any, _T] | Deferred[_T], seconds: float = 0.5) -> _T:
        """Its result, within some time."""
        done = waiting if isinstance(waiting, Deferred) else Deferred.fromCoroutine(waiting)
        self.group.run(seconds)
        return self.successResultOf(done)

    def fails(self, kind: type[DLedgerError], waiting: Any, seconds: float = 0.5) -> DLedgerError:
        """Its error, within some time."""
        done = waiting if isinstance(waiting, Deferred) else Deferred.fromCoroutine(waiting)
        self.group.run(seconds)
        return self.failureResultOf(done, kind).value  # type: ignore[no-any-return]

    @staticmethod
    async def take(reader: NamedReader, count: int) -> list[bytes]:
        """That many entries."""
        return [(await reader.__anext__()).body for _ in range(count)]

    @staticmethod
    async def rest(reader: NamedReader) -> list[bytes]:
        """All entries up to the end."""
        return [entry.body async for entry in reader]

    def lead(self, member_id: str | None) -> None:
        """All members say that this one leads."""
        for member in self.group.members.values():
            member.leader_id = member_id

    def asked(self, does: str) -> list[ReaderRequest]:
        """The requests that the leader got."""
        asked = [one for one in self.group["n0"].received if isinstance(one, ReaderRequest)]
        return [one for one in asked if one.does == does]


class ReadTests(ReaderCase):
    """Entries in order, from where the last process has left off."""

    def test_a_reader_goes_on(self) -> None:
        """What was committed does not come again; what was only handed out does."""
        reader = self.reader()
        self.assertEqual(self.done(self.take(reader, 4)), [b"0", b"1", b"2", b"3"])
        self.assertEqual(self.done(reader.commit(2)), 3)
        self.done(reader.close())
        again = self.reader(1)
        self.assertEqual(self.done(self.take(again, 2)), [b"3", b"4"])
        self.assertEqual(self.done(again.commit()), 5)
        self.assertGreater(again.token, reader.token)
        self.done(again.close())

    def test_to_the_end(self) -> None:
        """Without following, it ends where the log ended; what readers wrote is not handed out."""
        reader = self.reader(follow=False)
        self.assertEqual(self.done(self.rest(reader)), [b"%d" % number for number in range(10)])
        self.done(reader.commit())
        self.group.log.append(b"later")
        self.assertEqual(self.done(self.rest(reader)), [])
        self.done(reader.close())
        reader = self.reader(follow=False)
        self.assertEqual(self.done(self.rest(reader)), [b"later"])
        self.done(reader.close())

    def test_a_reader_follows_the_log(self) -> None:
        """New entries come as they are committed."""
        reader = self.reader(begin=NO_END)
        found = self.begin(self.take(reader, 2))
        self.group.run(2.0)
        self.assertNoResult(found)
        self.group.log += [b"a", b"b"]
        self.assertEqual(self.done(found), [b"a", b"b"])
        self.done(reader.close())

    def test_a_negative_begin_counts_entries(self) -> None:
        """A negative begin counts entries of programs, not those that members write."""
        for _ in range(2):
            reader = self.reader()
            self.done(self.take(reader, 1))
            self.done(reader.close())
        self.assertGreater(len(self.group.handler.own), 2)
        reader = self.reader(name="late", begin=-3)
        self.assertEqual(self.done(self.take(reader, 3)), [b"7", b"8", b"9"])
        self.done(reader.close())
        self.assertEqual(self.done(self.clients[0].move_reader("late", -2)), 8)

    def test_an_index_must_be_whole(self) -> None:
        """An index is a whole number."""
        reader = self.reader()
        self.assertRaises(TypeError, reader.commit, "5")
        self.assertRaises(ValueError, reader.commit, -5)
        self.assertRaises(ValueError, reader.commit, 2**70)

    def test_batches_come_to_the_faces(self) -> None:
        """As the faces use it."""
        reader = self.reader(begin=-3)
        batch: list[Entry] = self.done(reader.next_batch())
        reader.handed_index = batch[-1].index
        self.assertEqual(self.done(reader.commit()), batch[-1].index + 1)
        self.done(reader.close())
        self.assertEqual(self.done(reader.next_batch()), [])

    def test_late_commits_are_gathered(self) -> None:
        """Places that nobody waits for are one commit a second, and the last one comes with the close."""
        reader = self.reader(lease_s=9.0)
        for step in range(3):
            self.done(self.take(reader, 2), 0.0)
            self.assertEqual(self.done(reader.commit(wait=False), 0.0), 0)
            self.assertEqual((step, self.asked("commit")), (step, []))
        self.group.run(1.1)
        self.assertEqual([one.index for one in self.asked("commit")], [5])
        self.assertEqual(reader.done_index, 5)
        self.group.run(5.0)
        self.assertEqual(len(self.asked("commit")), 1)
        self.done(self.take(reader, 2), 0.0)
        self.assertEqual(self.done(reader.commit(wait=False), 0.0), 6)
        self.assertEqual(self.done(reader.commit(6)), 7)  # (That is before the place that waits.)
        self.done(reader.close())
        self.assertEqual([one.index for one in self.asked("commit")], [5, 6, 7])
        self.assertEqual(self.done(self.take(self.reader(1), 1)), [b"8"])

    def test_late_commit_of_the_first_entry(self) -> None:
        """It comes with the close, too."""
        reader = self.reader()
        self.done(self.take(reader, 1), 0.0)
        self.done(reader.commit(wait=False), 0.0)
        self.done(reader.close())
        self.assertEqual([one.index for one in self.asked("commit")], [0])

    def test_late_commit_after_close(self) -> None:
        """The group says that it comes too late."""
        reader = self.reader()
        self.done(self.take(reader, 2))
        self.done(reader.close())
        self.fails(LeaseLost, reader.commit(wait=False))

    def test_late_commit_of_nothing(self) -> None:
        """It needs an entry that was handed out; a commit that was waited for leaves nothing to do."""
        reader = self.reader()
        self.assertIn("nothing was read", str(self.fails(DLedgerError, reader.commit(wait=False))))
        self.done(self.take(reader, 2))
        self.assertIn("handed out", str(self.fails(DLedgerError, reader.commit(5, wait=False))))
        self.done(reader.commit(wait=False), 0.0)
        self.done(reader.commit())
        self.group.run(3.0)
        self.done(reader.close())
        self.assertEqual(len(self.asked("commit")), 1)

    def test_late_commit_lost(self) -> None:
        """A lost lease is reported by the next call; without a leader the place is tried again."""
        reader = self.reader(lease_s=90.0)
        self.done(self.take(reader, 2))
        self.lead(None)
        self.done(reader.commit(wait=False), 0.0)
        self.group.run(8.0)
        self.assertEqual(reader.done_index, -1)
        self.lead("n0")
        self.group.run(8.0)
        self.assertEqual(reader.done_index, 1)
        self.done(self.clients[1].move_reader("billing", 0))
        self.done(self.take(reader, 1), 0.0)
        self.done(reader.commit(wait=False), 0.0)
        self.group.run(2.0)
        self.fails(LeaseLost, reader.commit(wait=False))
        self.fails(LeaseLost, self.take(reader, 1))
        self.done(reader.close())

    def test_commit_leaves_out(self) -> None:
        """A commit beyond what was handed out goes on after it."""
        reader = self.reader()
        self.assertEqual(self.done(self.take(reader, 1)), [b"0"])
        self.done(reader.commit(6))
        self.assertEqual(self.done(self.take(reader, 2)), [b"7", b"8"])
        self.done(reader.close())

    def test_expired_entries_are_reported(self) -> None:
        """Entries that are gone are reported; a commit goes on after them."""
        reader = self.reader()
        self.done(self.take(reader, 1))
        self.done(reader.close())
        for member in self.group.members.values():
            member.begin_index = 5
        reader = self.reader()
        error = self.fails(Expired, self.take(reader, 1), 3.0)
        self.assertEqual(error.facts["first_index"], 5)
        self.done(reader.commit(4))
        self.assertEqual(self.done(self.take(reader, 1)), [b"5"])
        self.done(reader.close())

    def test_close_while_waiting(self) -> None:
        """Whoever waits gets the end."""
        for who, share in ((0, 0), (1, 0), (0, 3)):
            reader = self.reader(who, name=f"r{who}{share}", begin=NO_END, share=share)
            found = self.begin(self.rest(reader))
            self.group.run(0.4)
            self.done(reader.close())
            self.assertEqual(self.successResultOf(found), [])
            self.done(reader.close())


class LeaseTests(ReaderCase):
    """One process reads; another one goes on when its lease is over."""

    def test_a_busy_reader_keeps_its_lease(self) -> None:
        """A process that works on one entry for long keeps its lease; another one waits."""
        first, second = self.reader(0), self.reader(1)
        self.done(self.take(first, 3))
        waiting = self.begin(self.take(second, 1))
        self.group.run(5.0)
        self.assertNoResult(waiting)
        self.assertGreater(len(self.asked("renew")), 10)
        self.done(first.commit())
        self.done(first.close())
        self.assertEqual(self.done(waiting, 1.5), [b"3"])
        self.done(second.close())

    def test_not_for_ever(self) -> None:
        """With a time-out, the one that waits is informed of the reader."""
        first = self.reader(0)
        self.done(self.take(first, 1))
        for options in ({"timeout_s": 2.0}, {"follow": False}):
            second = self.reader(1, **options)
            error = self.fails(LeaseHeld, self.take(second, 1), 7.0)
            self.assertIn("p0 reads as billing", str(error))
        self.done(first.close())

    def test_a_paused_reader_loses_its_lease(self) -> None:
        """A process that stands still loses its lease: it is handed out nothing more, and commits nothing."""
        first, second = self.reader(0), self.reader(1)
        self.done(self.take(first, 1))
        self.group["n0"].holds = lambda request: (
            isinstance(request, ReaderRequest) and request.token == first.token
        )
        self.group.run(1.5)
        self.assertEqual(self.done(self.take(second, 2), 2.0), [b"0", b"1"])
        self.group["n0"].holds = lambda request: False
        self.group["n0"].held.clear()
        commit = first.commit()
        error = self.fails(LeaseLost, commit, 6.0)
        self.assertIn("another process", str(error))
        self.fails(LeaseLost, self.take(first, 1))
        self.fails(LeaseLost, first.next_batch())
        self.fails(LeaseLost, first.check_lease())
        self.assertEqual(self.done(second.commit()), 2)
        self.done(first.close())
        self.done(second.close())

    def test_asks_before_it_hands_out(self) -> None:
        """After a pause longer than the lease, the lease is renewed before anything is handed out."""
        reader = self.reader()
        self.done(self.take(reader, 1))
        self.patch(reader, "_plan_renewal", lambda: None)  # as if the program stood still
        renewal = reader.renewal
        assert renewal is not None
        renewal.cancel()
        reader.renewal = None
        self.clock.advance(1.5)
        self.assertTrue(reader.must_check)
        before = len(self.asked("renew"))
        self.assertEqual(self.done(self.take(reader, 1)), [b"1"])
        self.assertEqual(len(self.asked("renew")), before + 1)
        self.done(reader.close())

    def test_a_failed_renewal_hands_out_nothing(self) -> None:
        """Entries that were read, but not handed out as the lease was not renewed, come later."""
        reader = self.reader(begin=NO_END)
        self.patch(reader, "_plan_renewal", lambda: None)  # as if the program stood still
        waiting = self.begin(self.take(reader, 1))
        self.group.run(0.5)
        self.assertNoResult(waiting)

        async def no_answer(*_: object) -> ReaderResponse:
            raise Timeout(ResponseCode.TIMEOUT, reason="made up")

        patched = self.patch(ReaderCalls, "ask", no_answer)
        self.group.log += [b"a", b"b"]
        self.clock.advance(1.5)
        self.group.run(1.0)
        self.failureResultOf(waiting, Timeout)
        self.fails(Timeout, self.take(reader, 1))
        patched.restore()
        self.assertEqual(self.done(self.take(reader, 2), 2.0), [b"a", b"b"])
        self.done(reader.close())

    def test_shares_have_different_entries(self) -> None:
        """Processes have different entries at one time; a part is done when its process asks for more."""
        first, second = self.reader(0, share=3), self.reader(1, share=3)
        self.assertEqual(self.done(self.take(first, 2)), [b"0", b"1"])
        self.assertEqual(self.done(self.take(second, 3)), [b"3", b"4", b"5"])
        self.assertEqual(self.done(self.take(first, 2)), [b"2", b"6"])
        (info,) = self.done(self.clients[0].readers())
        self.assertEqual((info.next_index, set(info.holders)), (3, {"p0", "p1"}))
        self.done(second.close())
        self.done(first.close())
        third = self.reader(0, share=9)
        self.assertEqual(self.done(self.take(third, 3)), [b"3", b"4", b"5"])
        self.done(third.close())


class TroubleTests(ReaderCase):
    """Lost answers, other leaders, bad input."""

    def test_lost_answers_are_repeated_once(self) -> None:
        """Each request is repeated, and done once."""
        for does in ("take", "commit", "release"):
            reader = self.reader(name=f"r-{does}")
            member, left = self.group["n0"], [2]

            def answers_twice_in_vain(request: Request, does: str = does, left: list[int] = left) -> bool:
                if isinstance(request, ReaderRequest) and request.does == does and left[0]:
                    left[0] -= 1
                    self.group["n0"].answer(request)
                    return True
                return False

            member.holds = answers_twice_in_vain
            reader._calls = _soon(reader)
            self.assertEqual(self.done(self.take(reader, 1), 4.0), [b"0"], does)
            self.assertEqual(self.done(reader.commit(), 4.0), 1)
            self.done(reader.close(), 4.0)
            self.assertEqual(left, [0], does)
            known = self.group.handler.fold.state.readers[f"r-{does}"]
            self.assertEqual((known.state.next_index, [part.holder for part in known.state.parts]), (1, [""]))

    def test_a_call_ends_without_a_leader(self) -> None:
        """A call has an outcome in time."""
        self.lead(None)
        reader = self.reader()
        self.fails(DLedgerError, self.take(reader, 1), 8.0)
        self.done(reader.close())

    def test_a_deposed_leader_gives_no_outcome(self) -> None:
        """A refusal by one that does not lead any more is no outcome."""
        reader = self.reader()
        self.done(self.take(reader, 1))
        self.lead("n1")
        self.assertEqual(self.done(reader.commit(), 3.0), 1)
        self.done(reader.close(), 3.0)

    def test_a_java_leader_is_not_asked(self) -> None:
        """It is not asked, and the reason says what to do."""
        for member in self.group.members.values():
            member.wire_version = 0
        error = self.fails(DLedgerError, self.take(self.reader(), 1), 1.0)
        self.assertIs(error.code, ResponseCode.UNSUPPORTED)
        self.assertIn("n0 keeps no readers", str(error))
        self.assertEqual(self.asked("take"), [])

    def test_a_java_follower_is_not_believed(self) -> None:
        """A Java member that leads no more is not believed to: the leader is looked for again."""
        reader = self.reader()
        self.done(self.take(reader, 1))
        self.group["n0"].wire_version = 0
        self.group["n0"].lose_connections()
        self.fails(DLedgerError, reader.commit(), 1.0)
        self.group.lead("n1")
        self.assertEqual(self.done(reader.commit(), 3.0), 1)
        self.done(reader.close(), 3.0)

    def test_bad_input_is_refused(self) -> None:
        """Before anything is sent, or by the leader, in words."""
        for options in ({"name": ""}, {"name": "x" * 65}, {"name": "a\n"}, {"holder": " p"}):
            error = self.assertRaises(DLedgerError, self.reader, **options)
            self.assertIs(error.code, ResponseCode.UNEXPECTED_ARGUMENT)
        error = self.fails(DLedgerError, self.reader().commit())
        self.assertIn("nothing was read yet", str(error))
        error = self.fails(DLedgerError, self.take(self.reader(lease_s=0.1), 1))
        self.assertIn("a lease of 100 ms", str(error))
        self.assertIn("share=-1", str(self.assertRaises(ValueError, self.reader, share=-1)))
        self.fails(NotYet, self.take(self.reader(begin=99), 1))
        reader = self.reader()
        self.done(self.take(reader, 5))
        self.done(reader.commit())
        self.assertIn("does not go back", str(self.fails(DLedgerError, reader.commit(1))))
        self.fails(NotYet, reader.commit(99))
        self.done(reader.close())

    def test_a_list_in_pages(self) -> None:
        """All of them; one without an order is refused."""
        client: LogClient = self.clients[0]
        for name in "dbeac":
            self.done(client.move_reader(name, 1))
        for page_max in (1, 2, 5, 64):
            self.group.handler.page_max = page_max
            self.assertEqual([one.name for one in self.done(client.readers())], list("abcde"))
        self.group.handler.page_max = 2
        self.patch(self.group.handler.fold.state.readers, "after", lambda name, count: [
            self.group.handler.fold.state.readers["c"]])
        self.assertIn("no order", str(self.fails(DLedgerError, client.readers())))

    def test_move_forget_list(self) -> None:
        """For operators."""
        client: LogClient = self.clients[0]
        self.assertEqual(self.done(client.readers()), ())
        self.assertEqual(self.done(client.move_reader("billing", 4)), 4)
        reader = self.reader()
        self.assertEqual(self.done(self.take(reader, 1)), [b"4"])
        self.assertEqual(self.done(client.move_reader("billing", 2)), 2)
        self.fails(LeaseLost, reader.commit())
        self.fails(NotYet, client.move_reader("billing", 99))
        self.fails(DLedgerError, client.move_reader("", 1))
        self.fails(DLedgerError, client.forget_reader(""))
        self.done(client.forget_reader("billing"))
        self.assertEqual(self.done(client.readers()), ())
        self.done(reader.close())

    def test_a_closed_client_ends_its_readers(self) -> None:
        """Its readers end with it."""
        reader = self.reader()
        self.done(self.take(reader, 1))
        waiting = self.begin(self.take(self.reader(name="other", begin=NO_END), 1))
        self.clients[0].close()
        self.group.run(0.1)
        self.failureResultOf(waiting)
        self.fails(DLedgerError, reader.commit(), 1.0)


def _soon(reader: NamedReader) -> Any:
    """Its calls, with answers that are late soon."""
    return ReaderCalls(attrs.evolve(reader._calls.client, answer_timeout_s=0.2))



class BlockingTests(SynchronousTestCase):
    """In a program without a reactor."""

    def setUp(self) -> None:
        self.group = LiveGroup()
        self.group.log += [b"%d" % number for number in range(6)]
        self.log = self.group.open()
        self.addCleanup(self.log.close)

    def test_a_blocking_reader_goes_on(self) -> None:
        """What was committed does not come again; a commit leaves out what was read ahead."""
        with self.log.reader("billing", holder="me") as reader:
            self.assertEqual(next(reader).body, b"0")
            self.assertEqual(reader.commit(), 1)
            self.assertEqual(reader.commit(2), 3)
            self.assertEqual(next(reader).body, b"3")
            self.assertEqual((reader.name, reader.holder), ("billing", "me"))
            self.assertGreaterEqual(reader.token, 6)
        with self.log.reader("billing", follow=False) as reader:
            self.assertEqual([entry.body for entry in reader], [b"3", b"4", b"5"])
            reader.commit()
        self.assertEqual([(one.name, one.next_index) for one in self.log.readers()], [("billing", 6)])
        self.assertEqual(self.log.move_reader("billing", 1), 1)
        self.log.forget_reader("billing")
        self.assertEqual(self.log.readers(), ())
        self.assertIsNone(self.log.last_sequence("billing"))

    def test_a_lost_lease_is_reported(self) -> None:
        """A lease that is lost is reported in the thread of the program."""
        with self.log.reader("billing") as reader:
            next(reader)
            self.log.move_reader("billing", 0)
            self.assertRaises(LeaseLost, reader.commit)
            self.assertRaises(LeaseLost, next, reader)
        self.assertRaises(DLedgerError, self.log.reader, "")

    def test_a_closed_log_ends_its_readers(self) -> None:
        """A reader of a log that was closed ends without a wait."""
        reader = self.log.reader("billing")
        next(reader)
        self.log.close()
        self.assertRaises(DLedgerError, next, self.log.reader("other"))
        reader.close()
