# -*- test-case-name: tests.spark.test_sink_group_log,tests.spark.test_reader_place -*-
"""A connection to the leader of a group, whichever member that is; blocking, without Twisted."""

from __future__ import annotations

from dledger.spark.formats.options import ScanOptions
from dledger.spark.ledger.member_connection import MemberConnection, MemberRefused, NotNative, Trouble
from dledger.spark.ledger.members import parse_bootstrap
from protocols.wire.ledger.messages import MetadataResponse


class LeaderLink:
    """One connection at a time. The owner calls L{leave} at the end, and when the leader does not serve."""

    def __init__(self, options: ScanOptions) -> None:
        """@raise OptionError: C{bootstrap} makes no sense."""
        self._options = options
        self._addresses = parse_bootstrap(options.bootstrap)
        self._leader: MemberConnection | None = None
        self._problems: dict[str, Trouble] = {}

    def connected(self) -> MemberConnection:
        """
        The connection to the leader.

        @raise MemberRefused: all members refuse for good.
        @raise Trouble: there is none now.
        """
        if self._leader is None:
            self._problems.clear()
            asked: set[str] = set()
            while self._leader is None and (waiting := self._addresses.keys() - asked):
                member_id = min(waiting)
                asked.add(member_id)
                self._try(member_id)
        if self._leader is None:
            reported = "; ".join(f"{member_id}: {why}" for member_id, why in sorted(self._problems.items()))
            is_final = all(isinstance(problem, MemberRefused) for problem in self._problems.values())
            raise (MemberRefused if is_final else Trouble)(f"no leader found ({reported})")
        return self._leader

    def _try(self, member_id: str) -> None:
        """Take a member if it leads; else learn what it says, and why not."""
        options = self._options
        tls = None if member_id in options.tls_plain_members else options.tls
        timeout_s = options.request_timeout_ms / 1000
        try:
            connection = MemberConnection(
                member_id, self._addresses[member_id], options.group, timeout_s, tls,
                options.token_file,
            )
        except Trouble as trouble:
            self._problems[member_id] = trouble
            return
        try:
            answer = connection.metadata()
        except Trouble as trouble:
            connection.close()
            if isinstance(trouble, NotNative):
                trouble = NotNative(f"{trouble}, and a leader of ours is needed")
            self._problems[member_id] = trouble
            return
        self._addresses = {**answer.peers, **self._addresses}
        if answer.role != "leader":
            connection.close()
            self._problems[member_id] = Trouble(_said(answer))
            return
        self._leader = connection

    def leave(self) -> None:
        """Close the connection; the next call looks for a leader again."""
        if self._leader is not None:
            self._leader.close()
            self._leader = None


def _said(answer: MetadataResponse) -> str:
    leader = f", which follows {answer.leader_id}" if answer.leader_id else ", without a leader"
    return f"it is {answer.role or 'no leader'}{leader}"
