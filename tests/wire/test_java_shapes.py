# -*- test-case-name: tests.wire.test_java_shapes -*-
"""The short ways for what Java sends most are the general ways, or are not taken."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import read_object, write_object
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.java.java_shapes import (
    read_append,
    read_push,
    write_append_answer,
    write_push_answer,
)
from protocols.wire.ledger.java.json_bodies import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
)
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command, read_header
from tests.wire.values import batches, counts, house, indexes, ints, terms

APPEND = (
    b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":4,"count":1,"entry":{"body":"aGVsbG8=",'
    b'"bodyCrc":0,"chainCrc":0,"channel":0,"index":5,"magic":1,"pos":265,"size":53,"term":3},'
    b'"firstEntryIndex":5,"group":"g","lastEntryIndex":5,"leaderId":"n0","localId":"n0","remoteId":"n1",'
    b'"term":3,"totalSize":0,"type":"APPEND"}'
)
CLIENTS_APPEND = b'{"body":"aGVsbG8=","code":200,"group":"g","remoteId":"n0","term":-1}'
HEADER = (
    b'{"code":51004,"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":0}'
)

#: Bytes that turn numbers, quotes and braces into something else.
INTRUDERS = b'09-."\\{}[],:=+e \x00\xff'


def generally(body: bytes) -> Request | None:
    """The general way, which a leading blank enforces; None if it refuses."""
    assert read_push(b" " + body) is None
    try:
        return decode_request(RequestCode.PUSH, b" " + body)
    except BodyError:
        return None


def as_frame(header: bytes) -> bytes:
    """A frame without its length word."""
    return len(header).to_bytes(4, "big") + header


def mutations(text: bytes) -> list[bytes]:
    """Every byte replaced, left out, and preceded by one that may matter."""
    mutated = []
    for at in range(len(text)):
        mutated.append(text[:at] + text[at + 1 :])
        for intruder in INTRUDERS:
            mutated.append(text[:at] + bytes([intruder]) + text[at + 1 :])
            mutated.append(text[:at] + bytes([intruder]) + text[at:])
    return mutated


class PushTests(SynchronousTestCase):
    """A Java leader's APPEND of one entry."""

    def test_as_captured(self) -> None:
        """It is recognised, with and without C{localId} (0.2.7), and means the same."""
        for body in (APPEND, APPEND.replace(b'"localId":"n0",', b"")):
            push = read_push(body)
            self.assertIsNotNone(push)
            self.assertEqual(push, generally(body))
            self.assertEqual(decode_request(RequestCode.PUSH, body), push)

    @house
    @given(batch=batches(1, 1), term=terms, commit_index=indexes)
    def test_any_values(self, batch: Any, term: int, commit_index: int) -> None:
        """Whatever the numbers are, the outcome is that of the general way."""
        body = encode_request(PushEntryRequest(
            group="g", remote_id="n1", local_id="n0", leader_id="n0", term=term, type=PushType.APPEND,
            commit_index=commit_index, entries=batch,
        ))
        push = read_push(body)
        if push is not None:
            self.assertEqual(push, generally(body))

    def test_long_numbers(self) -> None:
        """Numbers that do not fit, or might not, are left to the general way, which refuses or takes them."""
        for old, new in (
            (b'"bodyCrc":0', b'"bodyCrc":2147483648'), (b'"index":5', b'"index":9223372036854775808'),
            (b'"term":3}', b'"term":-1}'), (b'"magic":1', b'"magic":01'), (b'"pos":265', b'"pos":1e3'),
        ):
            body = APPEND.replace(old, new)
            self.assertNotEqual(body, APPEND)
            self.assertIsNone(read_push(body), new)
        push = read_push(APPEND.replace(b'"bodyCrc":0', b'"bodyCrc":-2147483648'))
        self.assertIsNotNone(push)

    def test_other_types_and_batches(self) -> None:
        """COMPARE, whose size matters, is not taken for an APPEND; nor is a batch."""
        for old, new in (
            (b'"APPEND"', b'"COMPARE"'), (b'"APPEND"', b'"TRUNCATE"'), (b'"batch":false', b'"batch":true'),
            (b'"batchEntry":[]', b'"batchEntry":[{}]'), (b'"count":1', b'"count":2'),
        ):
            self.assertIsNone(read_push(APPEND.replace(old, new)), new)

    def test_every_mutation(self) -> None:
        """One byte changed, lost or inserted anywhere: the same as the general way, or left to it."""
        taken = 0
        for body in mutations(APPEND):
            push = read_push(body)
            if push is not None:
                taken += 1
                self.assertEqual(push, generally(body), body)
        self.assertGreater(taken, 100, "nothing was compared")

    def test_every_truncation(self) -> None:
        """A body that ends early is not recognised."""
        for length in range(len(APPEND)):
            self.assertIsNone(read_push(APPEND[:length]))


class HeaderTests(SynchronousTestCase):
    """The header of a frame without remark and extFields."""

    def test_as_captured(self) -> None:
        """It is recognised."""
        self.assertEqual(read_header(HEADER), (51004, 0, "JAVA", 7, 0))
        command = RemotingCommand(code=51004, opaque=7, language="JAVA")
        self.assertEqual(decode_command(as_frame(HEADER)), command)

    @house
    @given(code=ints, opaque=ints, flag=st.integers(0, 3), version=ints)
    def test_any_values(self, code: int, opaque: int, flag: int, version: int) -> None:
        """Whatever the numbers are, they come back."""
        command = RemotingCommand(code=code, opaque=opaque, flag=flag, version=version, body=b"x")
        self.assertEqual(decode_command(encode_command(command)[4:]), command)

    def test_every_mutation(self) -> None:
        """As of a push: the same as the general way, or left to it."""
        taken = 0
        for header in mutations(HEADER):
            if read_header(header) is None:
                continue
            taken += 1
            self.assertEqual(outcome_of(header), outcome_of(b" " + header), header)
        self.assertGreater(taken, 30, "nothing was compared")


def outcome_of(header: bytes) -> RemotingCommand | None:
    """What a frame with this header is taken for; None if it is refused."""
    try:
        return decode_command(as_frame(header))
    except WireError:
        return None


class AnswerTests(SynchronousTestCase):
    """The answer to a push."""

    @house
    @given(
        code=st.sampled_from(ResponseCode), term=terms, index=indexes, count=counts, begin_index=indexes,
        end_index=indexes, group=st.sampled_from(("g", 'a "quoted" one', "Größe", "\\")),
    )
    def test_canonical(self, group: str, **numbers: Any) -> None:
        """The keys stand in Java's order, and all that was said comes back."""
        response = PushEntryResponse(group=group, wire_version=1, **numbers)
        body = write_push_answer(response)
        assert body is not None
        self.assertEqual(write_object(dict(sorted(read_object(body).items()))), body)
        self.assertEqual(decode_response(RequestCode.PUSH, body), response)

    def test_rare_ones(self) -> None:
        """What is not said in a usual answer is left to the general way."""
        usual = PushEntryResponse(group="g", term=1, index=5, count=1, wire_version=1)
        self.assertIsNotNone(write_push_answer(usual))
        for change in (
            {"group": None}, {"index": None}, {"remote_id": "n1"}, {"local_id": "n0"}, {"leader_id": "n0"},
            {"wire_version": 0},
        ):
            self.assertIsNone(write_push_answer(attrs.evolve(usual, **change)), str(change))

    @house
    @given(
        code=st.sampled_from(ResponseCode), term=terms, index=indexes, pos=indexes,
        group=st.sampled_from(("g", 'a "quoted" one', "Größe", "\\")), leader_id=st.sampled_from(("n0", '"')),
    )
    def test_canonical_append(self, group: str, **numbers: Any) -> None:
        """The answer to an append has the bytes of the general way."""
        response = AppendResponse(group=group, **numbers)
        # The general way writes an answer that differs in a field which the short way leaves to it.
        general = read_object(encode_response(attrs.evolve(response, local_id="n9")))
        del general["localId"]
        self.assertEqual(write_append_answer(response), write_object(general))
        self.assertEqual(encode_response(response), write_object(general))

    def test_rare_appends(self) -> None:
        """An answer with other fields is left to the general way."""
        usual = AppendResponse(group="g", leader_id="n0", term=1, index=5, pos=240)
        self.assertIsNotNone(write_append_answer(usual))
        for change in (
            {"group": None}, {"leader_id": None}, {"remote_id": "n1"}, {"local_id": "n0"}, {"count": 2},
            {"wire_version": 1},
        ):
            self.assertIsNone(write_append_answer(attrs.evolve(usual, **change)), str(change))


class AppendTests(SynchronousTestCase):
    """The append of a client."""

    def test_usual(self) -> None:
        """What a client of Java sends, and ours, is read by the short way."""
        request = read_append(CLIENTS_APPEND)
        self.assertEqual(request, AppendRequest(group="g", remote_id="n0", bodies=(b"hello",)))
        assert request is not None
        self.assertEqual(encode_request(request), CLIENTS_APPEND)

    def test_mutated(self) -> None:
        """Each changed byte: the short way says the same as the general one, or nothing."""
        taken = 0
        for body in mutations(CLIENTS_APPEND):
            request = read_append(body)
            if request is None:
                continue
            taken += 1
            assert read_append(b" " + body) is None
            self.assertEqual(request, decode_request(RequestCode.APPEND, b" " + body), body)
        self.assertGreater(taken, 30, "nothing was compared")
