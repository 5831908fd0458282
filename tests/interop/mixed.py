# -*- test-case-name: tests.interop.test_mixed_groups -*-
"""
A group of Java members and ours, and the steps of its tests.

A member can be replaced by one of the other kind: both kinds use the same directory, so the new one starts on
the files of the old one. Every wait has a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import bodies_of
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    LeadershipTransferRequest,
    MetadataRequest,
)
from tests.interop.java import DLEDGER_VERSION, JavaMember
from tests.interop.links import Links, Tap
from tests.processes.asking import Asker, NoAnswer, ask
from tests.processes.children import ChildError, free_ports, wait_until
from tests.processes.ledgers import assert_identical, read_records
from tests.processes.members import Member
from tests.slowness import patient

JAVA, OURS = "java", "ours"
DATA_FILE_BYTES = 1 << 16
INDEX_FILE_BYTES = 32 * 256
#: For every wait. Nothing should take this long, but an overloaded machine may need minutes.
DEADLINE_S = 150.0


class MixedGroup:
    """
    Three members, named n0, n1, n2.

    @ivar links: the connections between the members, if they can lose bytes.
    @ivar kinds: C{java} or C{ours}, by member id.
    @ivar acknowledged: index to body of every append that was answered SUCCESS.
    """

    name = "mixed"

    def __init__(
        self, directory: Path, kinds: tuple[str, ...], *, java: Mapping[str, object] | None = None,
        ours: Mapping[str, object] | None = None, lossy: bool = False,
        version: str = DLEDGER_VERSION, tap: Tap | None = None, only: Mapping[str, object] | None = None,
    ) -> None:
        """
        @param java: further options of Java members; C{ours}: of ours; C{only}: of n0, if it is ours.
        @param version: of Java members.
        @param lossy: members reach each other through C{links}, which can lose bytes.
        @param tap: observes the bytes on C{links}.
        """
        self._directory = directory
        self._version = version
        self._java = dict(java or {})
        self._ours = dict(ours or {})
        self._only = dict(only or {})
        self.peers = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(len(kinds)))}
        self.links = Links(self.peers, tap=tap) if lossy else None
        self.kinds: dict[str, str] = {}
        self.members: dict[str, Member | JavaMember] = {}
        self.acknowledged: dict[int, bytes] = {}
        for peer_id, kind in zip(self.peers, kinds, strict=True):
            self.replace(peer_id, kind)

    def replace(self, peer_id: str, kind: str) -> None:
        """Make this member one of that kind, from its next start on."""
        assert peer_id not in self.members or not self.members[peer_id].is_running
        self.kinds[peer_id] = kind
        directory = self._directory / peer_id
        peers = self.peers if self.links is None else self.links.peers_of(peer_id)
        if kind == JAVA:
            options = {"mappedFileSizeForEntryData": DATA_FILE_BYTES,
                       "mappedFileSizeForEntryIndex": INDEX_FILE_BYTES, **self._java}
            self.members[peer_id] = JavaMember(
                peer_id, peers, directory, group=self.name, options=options, version=self._version
            )
        else:
            ours = {"mapped_file_size_for_entry_data": DATA_FILE_BYTES,
                    "mapped_file_size_for_entry_index": INDEX_FILE_BYTES, **self._ours,
                    **(self._only if peer_id == "n0" else {})}
            self.members[peer_id] = Member(peer_id, peers, directory, group=self.name, options=ours)

    def start(self, *peer_ids: str) -> None:
        """Start these members, or all that do not run; wait for those of Java."""
        chosen = [self.members[peer_id] for peer_id in peer_ids or tuple(self.members)]
        started = [member for member in chosen if not member.is_running]
        for member in started:
            member.start()
        for member in started:
            if isinstance(member, JavaMember):
                member.wait_started(seconds=DEADLINE_S)

    def kill(self) -> None:
        """End every process, and the links."""
        for member in self.members.values():
            member.kill()
        if self.links is not None:
            self.links.close()

    def stop(self) -> None:
        """Stop every member cleanly."""
        for member in self.members.values():
            member.stop()

    def of_kind(self, kind: str) -> list[str]:
        """Ids of the members of one kind."""
        return [peer_id for peer_id, own in self.kinds.items() if own == kind]

    def running(self) -> list[str]:
        """Ids of the members that run."""
        return [peer_id for peer_id, member in self.members.items() if member.is_running]

    def leader(self, *, seconds: float = DEADLINE_S) -> str:
        """The leader, as named by every running member, itself included."""
        found: list[str] = []

        def agreed() -> bool:
            named = []
            for peer_id in self.running():
                try:
                    request = MetadataRequest(group=self.name, remote_id=peer_id)
                    named.append(ask(self.peers[peer_id], request, seconds=2.0).leader_id)
                except NoAnswer:
                    named.append(None)
            if len(set(named)) == 1 and named[0] in self.running():
                found.append(str(named[0]))
            return bool(found)

        self._wait(agreed, seconds, "one leader of the whole group")
        return found[0]

    def append(self, *bodies: bytes, seconds: float = DEADLINE_S) -> int:
        """
        Append these bodies one after the other; each is tried until it is acknowledged.

        An attempt without an answer may have been written, so a body may be in the log twice; L{check} tests
        that acknowledged bodies are at their indexes.

        @return: the term of the last acknowledgement.
        """
        deadline = time.monotonic() + patient(seconds)
        term = -1
        for body in bodies:
            while True:
                answer = self._append_once(body)
                if answer is not None and answer.code is ResponseCode.SUCCESS:
                    self.acknowledged[answer.index] = body
                    term = answer.term
                    break
                if time.monotonic() > deadline:
                    raise ChildError(f"append of {body[:40]!r}: {answer}\n{self._tails()}")
                time.sleep(0.1)
        return term

    def _append_once(self, body: bytes) -> AppendResponse | None:
        leader_id = self.leader()
        request = AppendRequest(group=self.name, remote_id=leader_id, bodies=(body,))
        try:
            answer = ask(self.peers[leader_id], request)
        except NoAnswer:
            return None
        assert isinstance(answer, AppendResponse)
        return answer

    def append_pipelined(self, bodies: list[bytes]) -> None:
        """
        Append many bodies at the present leader; all must be acknowledged.

        Appends that timed out, on a busy machine, are repeated.
        """
        late: list[bytes] = []
        leader_id = self.leader()
        with Asker(self.peers[leader_id], seconds=30.0) as asker:
            asked = [
                (body, asker.send(AppendRequest(group=self.name, remote_id=leader_id, bodies=(body,))))
                for body in bodies
            ]
            for body, opaque in asked:
                answer = asker.collect(opaque)
                if answer.code is ResponseCode.WAIT_QUORUM_ACK_TIMEOUT:
                    late.append(body)
                    continue
                if not isinstance(answer, AppendResponse) or answer.code is not ResponseCode.SUCCESS:
                    raise ChildError(f"append at {leader_id}: {answer}\n{self._tails()}")
                self.acknowledged[answer.index] = body
        self.append(*late)

    def propose(self, peer_id: str, bodies: list[bytes]) -> None:
        """Send appends to a member without waiting; they are meant to stay uncommitted."""
        with Asker(self.peers[peer_id]) as asker:
            for body in bodies:
                asker.send(AppendRequest(group=self.name, remote_id=peer_id, bodies=(body,)))
            time.sleep(0.5)

    def get(self, index: int) -> bytes:
        """The body at an index, from the leader."""
        leader_id = self.leader()
        request = GetRequest(group=self.name, remote_id=leader_id, begin_index=index)
        answer = ask(self.peers[leader_id], request)
        assert isinstance(answer, GetResponse)
        if answer.entries is None:
            raise ChildError(f"GET {index} at {leader_id}: {answer}")
        return bodies_of(answer.entries)[0]

    def lead(self, peer_id: str, *, seconds: float = DEADLINE_S) -> None:
        """Transfer leadership to a member, and repeat the request until it leads."""
        deadline = time.monotonic() + patient(seconds)
        while (leader_id := self.leader()) != peer_id:
            answer = self.transfer(leader_id, peer_id)
            if time.monotonic() > deadline:
                raise ChildError(f"transfer from {leader_id} to {peer_id}: {answer}\n{self._tails()}")
            time.sleep(0.3)

    def transfer(self, leader_id: str, peer_id: str) -> object:
        """
        Ask the leader once to transfer leadership.

        @return: the answer, or why there is none.
        """
        term = self.append(b"which term is it? %d" % time.monotonic_ns())
        request = LeadershipTransferRequest(
            group=self.name, remote_id=leader_id, transfer_id=leader_id, transferee_id=peer_id, term=term
        )
        try:
            return ask(self.peers[leader_id], request, seconds=12.0)
        except NoAnswer as error:
            return error

    def wait_equal(self, *, seconds: float = DEADLINE_S) -> int:
        """
        Wait until all members run and hold the same ledger.

        @return: the last index.
        """
        ends: dict[str, int] = {}

        def equal() -> bool:
            for peer_id, member in self.members.items():
                if isinstance(member, JavaMember):
                    ends[peer_id] = int(member.status()["end"])
                else:
                    said = member.metadata()
                    ends[peer_id] = said.end_index if said is not None else -2
            return len(set(ends.values())) == 1

        self._wait(equal, seconds, "members that hold the same", every=0.3)
        return next(iter(ends.values()))

    def check(self) -> int:
        """
        Check that the members are equal, byte for byte, and hold every acknowledged body.

        @return: the last index.
        """
        end_index = self.wait_equal()
        paths = [member.directory / f"dledger-{peer_id}" for peer_id, member in self.members.items()]
        assert_identical(paths, end_index)
        # After the end of a Java ledger are the entries that it cut: Java does not erase.
        found = {record.index: record.body for record in islice(read_records(paths[0]), end_index + 1)}
        for index, body in self.acknowledged.items():
            if found.get(index) != body:
                raise ChildError(f"LOST: {index} is {found.get(index)!r:.80}, acknowledged {body!r:.80}")
        return end_index

    def _tails(self) -> str:
        return "\n".join(member.log_tail() for member in self.members.values())

    def _wait(self, condition: object, seconds: float, what: str, every: float = 0.1) -> None:
        try:
            wait_until(condition, seconds=seconds, what=what, every=every)  # type: ignore[arg-type]
        except ChildError as error:
            raise ChildError(f"{error}; {self.kinds}\n{self._tails()}") from None
