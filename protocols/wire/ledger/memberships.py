# -*- test-case-name: tests.wire.test_configuration -*-
"""
Memberships as JSON: in configuration entries (L{protocols.wire.ledger.own.configuration}), and as one text in
METADATA, by which a member reports the memberships of its log.

Source: none, this is ours; docs/membership.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

from protocols.wire.errors import BodyError
from protocols.wire.fastjson import LONG_BITS, read_object, to_int, write_object
from protocols.wire.ledger.bounds import INDEX_MAX, TERM_MAX
from protocols.wire.ledger.codes import MEMBERS_MAX

#: How the health of a member begins that the group has removed.
REMOVED = "removed"

#: Most bytes of an id or an address.
MEMBER_TEXT_BYTES_MAX = 255
#: Most memberships in one METADATA, and characters of their text.
REPORTED_MAX = 2
REPORTED_CHARACTERS_MAX = REPORTED_MAX * (MEMBERS_MAX * (2 * MEMBER_TEXT_BYTES_MAX + 16) + 256)


class MemberLists(NamedTuple):
    """Ids and addresses (C{host:port}) of the members that count, and of those that only copy the log."""

    voters: dict[str, str]
    learners: dict[str, str]


@attrs.frozen
class ReportedMembership:
    """A membership as a member reports it in METADATA; C{index} and C{term} are those of its entry."""

    index: int
    term: int
    members: MemberLists


def encode_reported(memberships: Iterable[ReportedMembership]) -> str:
    """Memberships as the text in METADATA, in order of indexes."""
    return write_object({"memberships": [
        {"index": one.index, "learners": one.members.learners, "term": one.term,
         "voters": one.members.voters}
        for one in memberships
    ]}).decode()


def decode_reported(text: str) -> tuple[ReportedMembership, ...]:
    """
    The memberships in the text in METADATA; none in an empty text.

    @raise ValueError: it is malformed.
    """
    if not text:
        return ()
    try:
        listed = read_object(text.encode()).get("memberships")
        if not isinstance(listed, list) or len(listed) > REPORTED_MAX:
            raise BodyError("memberships is not an array, or too long")
        return tuple(map(_reported, listed))
    except BodyError as error:
        raise ValueError(f"configuration: {error}") from error


def _reported(one: object) -> ReportedMembership:
    if not isinstance(one, dict):
        raise BodyError("a membership is not an object")
    index, term = to_int(one.get("index"), LONG_BITS, "index"), to_int(one.get("term"), LONG_BITS, "term")
    if index is None or term is None or not -1 <= index <= INDEX_MAX or not -1 <= term <= TERM_MAX:
        raise BodyError(f"index={index}, term={term} are out of bounds")
    return ReportedMembership(index, term, member_lists(one))


def member_lists(document: Mapping[str, object]) -> MemberLists:
    """
    The lists in a JSON object with C{voters} and C{learners}.

    @raise BodyError: they are malformed.
    """
    voters, learners = _members(document, "voters"), _members(document, "learners")
    if voters.keys() & learners.keys():
        raise BodyError(f"{sorted(voters.keys() & learners.keys())} are voters and learners")
    if len(voters) + len(learners) > MEMBERS_MAX:
        raise BodyError(f"{len(voters) + len(learners)} members, at most {MEMBERS_MAX} are allowed")
    return MemberLists(voters, learners)


def _members(document: Mapping[str, object], name: str) -> dict[str, str]:
    found = document.get(name)
    if not isinstance(found, dict):
        raise BodyError(f"{name} is not an object")
    for member_id, address in found.items():
        for text in (member_id, address):
            if not isinstance(text, str) or not 0 < len(text.encode()) <= MEMBER_TEXT_BYTES_MAX:
                raise BodyError(f"{name}: ids and addresses are text of 1 to {MEMBER_TEXT_BYTES_MAX} bytes")
    return dict(found)
