# -*- test-case-name: tests.wire.test_bounds -*-
"""No decoder lets a number above the bounds of the protocol through, in any message, in any format."""

from __future__ import annotations

from functools import partial

import attrs
from twisted.trial.unittest import SynchronousTestCase

from protocols.ledger.connection import NativeReader
from protocols.wire.errors import WireError
from protocols.wire.ledger import push
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX, TERM_MAX
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.entry import pack_record
from protocols.wire.ledger.java import json_bodies
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    HeartBeatRequest,
    LeadershipTransferRequest,
    LedgerMessage,
    MetadataResponse,
    PullResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
)
from protocols.wire.ledger.push_layout import KINDS
from tests.protocols.fakes import read_native


def entry(index: int = 0, term: int = 0, pos: int = 0) -> EntryBatch:
    """One entry with these numbers."""
    record, _ = pack_record(b"x", index=index, term=term, pos=pos, previous_chain_crc=0)
    return EntryBatch(first_index=index, count=1, term=term, records=record)


def plain(kind: type[LedgerMessage]) -> LedgerMessage:
    """A message of this class that every format can carry."""
    if kind is AppendRequest:
        return AppendRequest(group="g", remote_id="n0", bodies=(b"x",))
    if kind is PushEntryRequest:
        return PushEntryRequest(group="g", remote_id="n0", leader_id="n1", entries=entry())
    return kind(group="g", remote_id="n0")


#: Class, field, the largest value that is allowed.
FIELDS = (
    *((kind, "term", TERM_MAX) for code in KINDS for kind in MESSAGES[code]),
    (VoteRequest, "ledger_end_term", TERM_MAX), (VoteRequest, "ledger_end_index", INDEX_MAX),
    (PushEntryRequest, "commit_index", INDEX_MAX), (PushEntryResponse, "index", INDEX_MAX),
    (PushEntryResponse, "begin_index", INDEX_MAX), (PushEntryResponse, "end_index", INDEX_MAX),
    (MetadataResponse, "begin_index", INDEX_MAX), (MetadataResponse, "end_index", INDEX_MAX),
    (MetadataResponse, "committed_index", INDEX_MAX), (AppendResponse, "index", INDEX_MAX),
    (AppendResponse, "pos", POSITION_MAX), (PullResponse, "ledger_begin_index", INDEX_MAX),
    (PullResponse, "committed_index", INDEX_MAX),
    (LeadershipTransferRequest, "take_leadership_ledger_index", INDEX_MAX),
)


def native(message: LedgerMessage) -> bytes:
    """The native frame."""
    if isinstance(message, Request):
        return push.encode_request_frame(message, 7)
    assert isinstance(message, Response)
    return push.encode_response_frame(message, 7)


def through_json(message: LedgerMessage) -> LedgerMessage:
    """The message as the other end of a remoting connection reads it."""
    if isinstance(message, Request):
        return json_bodies.decode_request(message.kind, json_bodies.encode_request(message))
    assert isinstance(message, Response)
    return json_bodies.decode_response(message.kind, json_bodies.encode_response(message))


class BoundTests(SynchronousTestCase):
    """The bound itself passes, the next number does not."""

    def test_every_field(self) -> None:
        """In JSON, in native frames, and by the short way of a connection that knows the sender."""
        for kind, name, most in FIELDS:
            message = plain(kind)
            reader = NativeReader()
            read_native(reader, native(message))
            good, bad = (attrs.evolve(message, **{name: value}) for value in (most, most + 1))
            self.assertEqual(getattr(read_native(reader, native(good))[1], name), most, (kind, name))
            self.assertEqual(getattr(through_json(good), name), most, (kind, name))
            for read, given in ((partial(read_native, reader), native(bad)), (push.decode_frame, native(bad)),
                                (through_json, bad)):
                error = self.assertRaises(WireError, read, given)
                self.assertIn(str(most), str(error), (kind, name))

    def test_entries(self) -> None:
        """Index, term and position of the entries of a push, in Java's usual form too."""
        like = PushEntryRequest(
            group="g", remote_id="n0", local_id="n1", leader_id="n1", term=TERM_MAX, type=PushType.APPEND
        )
        for index, term, pos in ((INDEX_MAX + 1, 1, 1), (1, TERM_MAX + 1, 1), (1, 1, POSITION_MAX + 1)):
            bad = attrs.evolve(like, entries=entry(index, term, pos))
            reader = NativeReader()
            read_native(reader, native(attrs.evolve(like, entries=entry())))
            self.assertRaises(WireError, read_native, reader, native(bad))
            self.assertRaises(WireError, through_json, bad)
        good = attrs.evolve(like, entries=entry(INDEX_MAX, TERM_MAX, POSITION_MAX))
        self.assertEqual(through_json(good), good)
        self.assertEqual(push.decode_frame(native(good))[1], good)

    def test_negative_interval(self) -> None:
        """A leader beats, or says nothing."""
        bad = HeartBeatRequest(group="g", remote_id="n0", leader_id="n1", heart_beat_interval_ms=-1)
        self.assertRaises(WireError, push.decode_frame, native(bad))
        self.assertRaises(WireError, through_json, bad)
