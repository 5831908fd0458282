# -*- test-case-name: tests.node.test_group_states -*-
"""
The state of the group between members: a member whose log begins after its own, or that has none, gets
another one's::

    ask one member: pieces in order --whole, checked--> wait until its entry is committed here --> taken up
        |  no answer, a refusal, damage: after a pause the next member, from the beginning
        |  its quota is used up: after a pause the same member, where it was

Rule 1: one piece is under way at a time, on the connection of a member, within the quota of bytes a second of
a follower that lacks many entries.
Rule 2: a state is taken up only if the log has the entry that it names, committed, with the same bytes; and
no state is given that a member does not have by its own log.
Rule 3: a member whose directory Java wrote begins with an empty state when no other member has given one for
L{PATIENCE_S}. If one does while others know producers, it gives their slots away, and they refuse its
entries: so it does not while a state is on its way.
Rule 4: a large state is encoded and decoded in steps, each in a turn of its own. A member that asks for it
before it is encoded gets an answer without data, and asks again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import accumulate

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.storage.files.state_file import StateEncoding, StatePlace, StoredState, decoding
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse

#: Bytes of a state at most: three times those of the largest that a leader admits.
STATE_BYTES_MAX = 192 * 1024 * 1024
#: Most encoded states that a member keeps: that of another index does not end a transfer that is under way.
OFFERS_MAX = 2
#: Seconds for which an encoded state is kept for the member that has asked for a piece of it.
OFFERED_S = 60.0
#: Seconds without a state before another member is asked, and between two attempts.
PAUSE_S = 1.0
#: Seconds without a state before the log says so, and from then on between two such lines.
PATIENCE_S, WARNED_S = 30.0, 3600.0


@attrs.define(eq=False)
class _Offer:
    """
    A state that is, or becomes, bytes.

    @ivar asked_s: when a piece of it was asked for last.
    @ivar is_given: whether a member has got a piece of it.
    @ivar begins: offset of each piece of the encoding; empty: that is not done.
    """

    place: StatePlace
    encoding: StateEncoding
    asked_s: float
    is_given: bool = False
    begins: list[int] = attrs.Factory(list)

    def bytes_at(self, offset: int, max_bytes: int) -> bytes:
        """Some of its bytes, C{max_bytes} at most."""
        pieces, at = self.encoding.pieces, bisect_right(self.begins, offset) - 1
        found = bytearray(memoryview(pieces[at])[offset - self.begins[at] :][:max_bytes])
        while len(found) < max_bytes and (at := at + 1) < len(pieces):
            found += memoryview(pieces[at])[: max_bytes - len(found)]
        return bytes(found)


class GroupOffers:
    """
    Gives pieces of this member's state.

    Invariant: it holds L{OFFERS_MAX} encoded states at most, each of another entry.
    """

    def __init__(
        self, ledger: FileStore, seconds: Callable[[], float], later: Callable[[Callable[[], None]], None]
    ) -> None:
        """@param later: makes a call in one of the next turns."""
        self._ledger = ledger
        self._seconds = seconds
        self._later = later
        self._offers: dict[tuple[int, int], _Offer] = {}

    def piece_for(self, request: SnapshotRequest, max_bytes: int) -> SnapshotResponse:
        """
        A piece of the state; without data while it is not encoded.

        @raise DLedgerError: LEADER_NOT_READY: it is not known here; INDEX_LESS_THAN_LOCAL_BEGIN: the one
            that was begun is no longer there; UNEXPECTED_ARGUMENT: it has no such piece.
        """
        self.check_known()
        offer = self._newest() if request.index < 0 else self._offers.get((request.index, request.index_term))
        if offer is None:
            raise DLedgerError(ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, reason=(
                f"the state after the entry {request.index} is not offered any more"
            ))
        offer.asked_s = self._seconds()
        if not offer.begins:
            return SnapshotResponse()
        size = offer.encoding.size
        if not 0 <= request.offset < size:
            raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=(
                f"the state has {size} bytes, none at {request.offset}"
            ))
        offer.is_given = True
        data = offer.bytes_at(request.offset, max_bytes)
        return SnapshotResponse(
            index=offer.place.entry_index, index_term=offer.place.term, size=size, offset=request.offset,
            data=data, crc=crc32(data),
        )

    def check_known(self) -> None:
        """@raise DLedgerError: LEADER_NOT_READY: the state is not known here."""
        if self._ledger.group is None:
            raise DLedgerError(ResponseCode.LEADER_NOT_READY, reason=self._ledger.why_group_unknown)

    def sweep(self) -> None:
        """Drop what nobody asks for any more."""
        since_s = self._seconds() - OFFERED_S
        self._offers = {place: offer for place, offer in self._offers.items() if offer.asked_s >= since_s}

    def _newest(self) -> _Offer:
        """That of the last committed entry, or one that was not given yet."""
        for offer in self._offers.values():
            if not offer.is_given:  # (A log that grows would begin a new one with each question.)
                return offer
        place, encoding = self._ledger.encoding_group()
        key = place.entry_index, place.term
        if (known := self._offers.get(key)) is not None:
            return known
        while len(self._offers) >= OFFERS_MAX:
            del self._offers[min(self._offers, key=lambda one: self._offers[one].asked_s)]
        offer = self._offers[key] = _Offer(place, encoding, self._seconds())
        self._encode(offer)
        return offer

    def _encode(self, offer: _Offer) -> None:
        if offer.encoding.step():
            offer.begins = [0, *accumulate(map(len, offer.encoding.pieces[:-1]))]
        elif offer in self._offers.values():
            self._later(partial(self._encode, offer))


class GroupFetch:
    """
    Gets the state from other members while this one has none.

    Invariant: one question is under way at most.

    @ivar progress: how far it is, for people; empty: nothing is needed.
    """

    log = Logger()

    def __init__(
        self, ledger: FileStore, *, self_id: str, senders: Callable[[], Sequence[str]],
        ask: Callable[[str, SnapshotRequest], Deferred[SnapshotResponse]],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        """
        @param senders: ids of the members that can be asked, the leader first.
        @param later: makes a call in one of the next turns.
        """
        self._ledger = ledger
        self._self_id = self_id
        self._senders = senders
        self._ask = ask
        self._later = later
        self._asked: Deferred[SnapshotResponse] | None = None
        self._peer_id = ""
        self._turn = 0
        self._next_s = -1.0
        self._warn_s = 0.0
        self._data = bytearray()
        self._whole: tuple[int, int, int] | None = None  # index, term and size of the state
        self._decoding: Generator[None, None, StoredState] | None = None
        self._stored: StoredState | None = None
        self.progress = ""

    @property
    def why_unknown(self) -> str:
        """Why the state is not known, and how far the transfer is, for people; empty if it is known."""
        if self._ledger.group is not None:
            return ""
        return "; ".join(filter(None, (self._ledger.why_group_unknown, self.progress)))

    def sweep(self, now_s: float) -> None:
        """Begin, or try again. @param now_s: of the monotonic clock."""
        if self._ledger.group is not None:
            if self.progress:
                self._begin_again()
                self.progress = ""
                self._next_s = -1.0
            return
        if self._next_s < 0:
            self._next_s = now_s + PAUSE_S
            self._warn_s = now_s + PATIENCE_S
        is_nobody_giving = self._asked is None and self._whole is None
        if now_s >= self._warn_s and is_nobody_giving and self._ledger.may_begin_group_anew:
            return self._ledger.begin_group_anew()
        if now_s >= self._warn_s:
            self._warn_s = now_s + WARNED_S
            self.log.warn(
                "member {self_id} does not know the state of the group, and refuses producers and readers: "
                "{why}; {progress}",
                self_id=self._self_id, why=self._ledger.why_group_unknown, progress=self.progress,
            )
        if self._asked is not None or self._decoding is not None or now_s < self._next_s:
            return
        self._next_s = now_s + PAUSE_S
        if self._stored is not None:
            self._take_up(self._stored)
        elif self._whole is not None:
            self._ask_next()
        elif senders := self._senders():
            self._peer_id = senders[self._turn % len(senders)]
            self._turn += 1
            self._begin_again()
            self._ask_next()
        else:
            self.progress = "no member can be asked for the state of the group"

    def stop(self) -> None:
        """Ask nobody any more."""
        if self._asked is not None:
            self._asked.cancel()

    def _begin_again(self) -> None:
        self._data = bytearray()
        self._whole = self._decoding = self._stored = None

    def _ask_next(self) -> None:
        index, term, _ = self._whole or (-1, -1, 0)
        asked = self._asked = self._ask(self._peer_id, SnapshotRequest(
            index=index, index_term=term, offset=len(self._data)
        ))
        asked.addCallbacks(self._answered, self._failed)

    def _failed(self, failure: Failure) -> None:
        self._asked = None
        self._refused(failure.getErrorMessage())

    def _refused(self, why: str) -> None:
        self._begin_again()
        self.progress = f"{self._peer_id} sends no state of the group: {why}"

    def _answered(self, answer: SnapshotResponse) -> None:
        self._asked = None
        if self._ledger.group is not None:
            return
        if answer.code is not ResponseCode.SUCCESS:
            return self._refused(f"{answer.code.name} {answer.reason}".strip())
        if answer.data is None:
            self.progress = f"{self._peer_id} may send nothing for a while: its quota is used up"
            if self._whole is None:
                self._turn -= 1  # (The same one again.)
            return
        whole = (answer.index, answer.index_term, answer.size)
        if self._whole is None and 0 < answer.size <= STATE_BYTES_MAX:
            self._whole = whole
        if whole != self._whole or answer.offset != len(self._data) or crc32(answer.data) != answer.crc or (
            not 0 < len(answer.data) <= answer.size - answer.offset
        ):
            return self._refused(f"{len(answer.data)} bytes at {answer.offset} of {answer.size} do not fit")
        self._data += answer.data
        self.progress = (
            f"{self._peer_id} sends the state of the group: {len(self._data)} of {answer.size} bytes"
        )
        if len(self._data) < answer.size:
            return self._ask_next()
        self._decoding = decoding(self._data)
        self._decode(self._decoding)

    def _decode(self, steps: Generator[None, None, StoredState]) -> None:
        if steps is not self._decoding:
            return  # (It began again.)
        try:
            next(steps)
        except StopIteration as done:
            self._decoding = None
            self._stored = done.value
            self._take_up(done.value)
        except WireError as error:
            self._refused(str(error))
        else:
            self._later(partial(self._decode, steps))

    def _take_up(self, stored: StoredState) -> None:
        why = self._ledger.install_group(stored)
        if not why:
            self.log.info(
                "member {self_id} has taken up the state of the group after the entry {index} from {peer_id}",
                self_id=self._self_id, index=stored.place.entry_index, peer_id=self._peer_id,
            )
            self._begin_again()
        elif stored.place.entry_index > self._ledger.committed_index:
            self.progress = why
        else:
            self._refused(why)
