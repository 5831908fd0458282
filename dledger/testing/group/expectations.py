# -*- test-case-name: tests.sim.test_scenarios -*-
"""The expectations of scripts: each compares one fact of the group with words of the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from dledger.testing.group.injection.injector import Injector
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.members.member import SimMember
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.entry import bodies_of


class ScriptFailed(AssertionError):
    """An expectation does not hold, or a command makes no sense; the message names the line."""


@attrs.define
class ScriptedGroup:
    """The group that C{nodes} made, and the answers in it."""

    cluster: SimCluster
    injector: Injector
    answers: dict[str, tuple[str, int, tuple[bytes, ...]]] = attrs.Factory(dict)
    elections: bool = False


def member_of(cluster: SimCluster, member_id: str) -> SimMember:
    """A member by its id. @raise ScriptFailed: there is none."""
    found = cluster.members.get(member_id)
    if found is None:
        raise ScriptFailed(f"there is no member {member_id!r}")
    return found


def expect_same(expected: object, found: object, what: str) -> None:
    """@raise ScriptFailed: they differ."""
    if expected != found:
        raise ScriptFailed(f"{what}: expected {expected}, found {found}")


@attrs.frozen
class Expectations:
    """Checks the C{expect} commands of one script."""

    _group: ScriptedGroup

    def check(self, what: str, words: Sequence[str]) -> None:
        """
        C{expect WHAT WORDS}: see the methods below.

        @raise ScriptFailed: it does not hold, or is none.
        """
        method: Callable[..., None] | None = getattr(self, f"_expect_{what}", None)
        if method is None:
            raise ScriptFailed(f"there is no expectation {what!r}")
        method(*words)

    def _member(self, member_id: str) -> SimMember:
        return member_of(self._group.cluster, member_id)

    def _expect_leader(self, member_id: str) -> None:
        leader = self._group.cluster.leader
        found = leader.member_id if leader else "none"
        expect_same(member_id, found, "leader")

    def _expect_role(self, member_id: str, role: str) -> None:
        member = self._member(member_id)
        expect_same(role, member.core.status().role if member.is_up else "down", f"role of {member_id}")

    def _expect_term(self, member_id: str, term: str) -> None:
        expect_same(int(term), self._member(member_id).core.status().term, f"term of {member_id}")

    def _expect_log(self, member_id: str, *bodies: str) -> None:
        expect_same(" ".join(bodies), " ".join(self._bodies(self._member(member_id))), f"log of {member_id}")

    def _expect_last(self, member_id: str, body: str) -> None:
        expect_same(body, self._bodies(self._member(member_id))[-1], f"last entry of {member_id}")

    def _expect_terms(self, member_id: str, *terms: str) -> None:
        mirror = self._group.cluster.invariants.mirror(member_id)
        expect_same(" ".join(terms), " ".join(map(str, mirror.terms)), f"terms of {member_id}")

    def _expect_committed(self, member_id: str, index: str) -> None:
        found = self._member(member_id).core.committed_index
        expect_same(int(index), found, f"committed index of {member_id}")

    def _expect_repairing(self, member_id: str, answer: str) -> None:
        repairing = self._member(member_id).core.status().is_repairing
        expect_same(answer, "yes" if repairing else "no", f"repairing of {member_id}")

    def _expect_refused(self, member_id: str, *words: str) -> None:
        """C{expect refused n1 votes}: n1 does not start, and the reason has these words."""
        member = self._member(member_id)
        expect_same("refused", "started" if member.start() else "refused", f"start of {member_id}")
        if " ".join(words) not in str(member.start_error):
            raise ScriptFailed(f"{member_id} does not start for another reason: {member.start_error}")

    def _expect_answer(self, label: str, code: str, index: str | None = None) -> None:
        found = self._group.answers.get(label, ("none", -1, ()))
        expect_same(code, found[0], f"answer to {label}")
        if index is not None:
            expect_same(int(index), found[1], f"index in the answer to {label}")

    def _expect_body(self, label: str, body: str) -> None:
        found = self._group.answers.get(label, ("none", -1, ()))
        read = " ".join(given.decode() or "-" for given in found[2]) or found[0]
        expect_same(body, read, f"body read by {label}")

    def _expect_same(self) -> None:
        logs = {member_id: self._bodies(member) for member_id, member in self._group.cluster.members.items()}
        model = next(iter(logs.values()))
        for member_id, log in logs.items():
            expect_same(" ".join(model), " ".join(log), f"log of {member_id}")

    def _expect_pushes(self, source: str, target: str, kind: str, relation: str, count: str) -> None:
        found = self._member(source).driver.pushes.get((target, PushType[kind]), 0)
        holds = found < int(count) if relation == "<" else found == int(count)
        if not holds:
            raise ScriptFailed(f"{source} sent {target} {found} times {kind}, expected {relation} {count}")

    def _bodies(self, member: SimMember) -> list[str]:
        mirror = self._group.cluster.invariants.mirror(member.member_id)
        bodies: list[str] = []
        index = mirror.begin_index
        while index <= mirror.end_index:
            batch = member.ledger.read_range(index, end_index=mirror.end_index, max_bytes=1 << 20)
            bodies += [body.decode() or "-" for body in bodies_of(batch)]
            index = batch.last_index + 1
        return bodies
