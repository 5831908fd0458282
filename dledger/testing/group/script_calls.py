# -*- test-case-name: tests.sim.test_scenarios -*-
"""Commands of scripts that ask a member for more: long batches, changes of members, transfers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.python.failure import Failure

from dledger.node.requests.appends import AppendResult
from dledger.testing.group.expectations import ScriptedGroup, ScriptFailed, member_of
from dledger.values.errors import DLedgerError
from dledger.values.ledger.membership import ADD, MOVE
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import (
    LeadershipTransferRequest,
    MembershipRequest,
    Response,
)

#: Without these answers entries may be in the log, or come into it.
UNKNOWN = (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.TERM_CHANGED)


class ScriptCalls:
    """The commands of one script; each notes the code of its answer under a label."""

    def __init__(self, group: ScriptedGroup, advance: Callable[[float], None]) -> None:
        """@param advance: lets simulated seconds pass."""
        self._group = group
        self._advance = advance

    def call(self, what: str, *words: str) -> None:
        """One of the methods below. @raise ScriptFailed: there is no such call."""
        method: Callable[..., None] | None = getattr(self, what, None)
        if what not in ("batch", "change", "hand", "stream") or method is None:
            raise ScriptFailed(f"there is no call {what!r}")
        method(*words)

    def _note(self, label: str, response: Response) -> None:
        self._group.answers[label] = (response.code.name, response.term, ())

    def _ask(
        self, member_id: str, label: str, request: MembershipRequest | LeadershipTransferRequest
    ) -> None:
        self._group.answers.pop(label, None)
        reported = partial(self._note, label)
        member_of(self._group.cluster, member_id).call(
            lambda node: node.router.ask(request).addCallbacks(reported, lambda _: None)
        )
        self._advance(0.0001)

    def change(
        self, member_id: str, label: str, change: str, target_id: str, forced: str = "", dry: str = ""
    ) -> None:
        """C{change n0 x remove n2 [forced]}: an operator asks n0 for this change of the members."""
        cluster = self._group.cluster
        has_address = change in (ADD, MOVE)
        self._ask(member_id, label, MembershipRequest(
            group=member_of(cluster, member_id).config.group, remote_id=member_id, change=change,
            member_id=target_id, address=cluster.addresses.get(target_id, "") if has_address else "",
            is_forced=forced == "forced", is_dry=dry == "dry",
        ))

    def hand(self, member_id: str, label: str, to_id: str, term: str = "-1") -> None:
        """C{hand n0 x n2 [7]}: ask n0, as a client that believes that it leads in this term, to hand over."""
        self._ask(member_id, label, LeadershipTransferRequest(
            group=member_of(self._group.cluster, member_id).config.group, remote_id=member_id,
            transfer_id=member_id, transferee_id=to_id, term=int(term),
        ))

    def batch(self, member_id: str, count: str, label: str, size: str = "8") -> None:
        """C{batch n0 2000 x [100]}: one call with 2000 bodies, x0000000, x0000001 and so on, of 100 bytes."""
        history = self._group.cluster.history
        bodies = tuple(f"{label}{number:07d}".encode().ljust(int(size), b".") for number in range(int(count)))
        calls = [history.begin("append", client="script", body=body) for body in bodies]
        answers = self._group.answers
        answers.pop(label, None)

        def reported(result: AppendResult) -> None:
            answers[label] = (ResponseCode.SUCCESS.name, result.index, ())
            for offset, call in enumerate(calls):
                history.end(call, "ok", index=result.index + offset)

        def failed(failure: Failure) -> None:
            error = failure.value
            assert isinstance(error, DLedgerError), failure
            answers[label] = (error.code.name, -1, ())
            if error.code not in UNKNOWN:
                for call in calls:
                    history.end(call, "failed")

        member_of(self._group.cluster, member_id).call(
            lambda node: node.append(bodies).addCallbacks(reported, failed)
        )
        self._advance(0.0001)

    def stream(self, member_id: str, count: str, label: str, pause_s: str) -> None:
        """C{stream n0 200 y 0.02}: 200 calls with one body each, y0, y1 and so on, one every 0.02 s."""
        for number in range(int(count)):
            self.batch(member_id, "1", f"{label}{number}.")
            self._advance(float(pause_s))
