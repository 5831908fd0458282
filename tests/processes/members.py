# -*- test-case-name: tests.processes.test_group -*-
"""
Our members as real C{twistd} processes on loopback, alone and as a group.

Every wait has a deadline. The group is judged from outside only: by its members' answers to METADATA, and by
their files (see L{tests.processes.ledgers}).
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from protocols.wire.ledger.messages import MetadataResponse
from tests.processes.asking import metadata_of
from tests.processes.children import Child, ChildError, free_ports, peers_text, wait_until

ROOT = Path(__file__).resolve().parents[2]
TWISTD = "from twisted.scripts.twistd import run; run()"


class Member(Child):
    """
    One member.

    @ivar directory: its C{store_base_dir}.
    @ivar ledger_path: the directory of C{data} and C{index}.
    """

    def __init__(
        self, self_id: str, peers: Mapping[str, str], directory: Path, *, group: str = "default",
        options: Mapping[str, object] | None = None, extra: tuple[str, ...] = (),
        descriptors: int | None = None, modules: Path = ROOT, tree: Path = ROOT,
    ) -> None:
        """
        @param options: configuration by the names of L{dledger.values.ledger.config.DLedgerConfig}.
        @param extra: further words of the command line.
        @param modules: a directory of modules, besides those of the tree.
        @param tree: the directory of the packages that it runs.
        @param descriptors: soft and hard limit of open files; None: those of this process.
        """
        self.self_id = self_id
        self.address = peers[self_id]
        self.directory = directory
        self.ledger_path = directory / f"dledger-{self_id}"
        command = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
        command += [
            sys.executable, "-c", TWISTD, "-n", "--pidfile=", "dledger", "--node-id", self_id,
            "--peers", peers_text(peers), "--store", str(directory), "--group", group,
        ]
        for name, value in (options or {}).items():
            command += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        super().__init__(
            self_id, [*command, *extra], log_path=directory / f"{self_id}.log",
            environment={"PYTHONPATH": f"{tree}:{modules}", "PYTHONUNBUFFERED": "1"},
        )
        self._group = group

    def metadata(self, *, seconds: float = 2.0) -> MetadataResponse | None:
        """The member's view of itself; None if it does not answer."""
        return metadata_of(self.self_id, self.address, group=self._group, seconds=seconds)


class Group:
    """
    Members n0, n1, ... on free loopback ports, each with its own directory.

    @ivar members: by id.
    @ivar peers: C{host:port} by id.
    """

    def __init__(
        self, directory: Path, *, size: int = 3, name: str = "default",
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self.peers = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(size))}
        self.members = {
            peer_id: Member(peer_id, self.peers, directory / peer_id, group=name, options=options)
            for peer_id in self.peers
        }

    @property
    def peers_text(self) -> str:
        """The members in the form that clients and members take."""
        return peers_text(self.peers)

    def start(self) -> None:
        """Start every member that does not run."""
        for member in self.members.values():
            if not member.is_running:
                member.start()

    def kill(self) -> None:
        """SIGKILL for every member, one right after the other."""
        for member in self.members.values():
            member.kill()

    def stop(self, *, seconds: float = 20.0) -> dict[str, int]:
        """SIGTERM for every member. @return: their exit statuses."""
        return {peer_id: member.stop(seconds=seconds) for peer_id, member in self.members.items()}

    def leader(self, *, among: tuple[str, ...] | None = None, seconds: float = 20.0) -> str:
        """
        The leader, as named by a majority of the group; and no member that answers is unsure any more.

        (The votes of unsure members count only together with those of all: a new group that is not done
        with this does not outlive the loss of a member.)

        @param among: ask only these (the others may be paused).
        @raise ChildError: no leader was named in time.
        """
        found: list[str] = []

        def agreed() -> bool:
            said = [self.members[peer_id].metadata(seconds=1.0) for peer_id in among or tuple(self.members)]
            if any(answer is not None and "unsure" in answer.health for answer in said):
                return False
            named = [answer.leader_id for answer in said if answer is not None and answer.leader_id]
            for leader_id in set(named):
                if named.count(leader_id) > len(self.members) // 2 and leader_id in (among or self.members):
                    found.append(leader_id)
            return bool(found)

        self._wait(agreed, seconds, "a leader")
        return found[0]

    def wait_settled(self, *, seconds: float = 30.0) -> int:
        """
        Wait until every member has committed all its entries, and all hold the same.

        No client may be writing. A leader's ledger may still grow by its term-start entry, so the state
        must be seen twice.

        @return: the last index.
        """
        seen: list[tuple[object, ...]] = []

        def settled() -> bool:
            said = [member.metadata(seconds=1.0) for member in self.members.values()]
            if any(answer is None for answer in said):
                seen.clear()
                return False
            state = {
                (answer.end_index, answer.committed_index, answer.leader_id) for answer in said if answer
            }
            if len(state) != 1:
                seen.clear()
                return False
            (end_index, committed_index, leader_id), = state
            if end_index != committed_index or leader_id is None:
                seen.clear()
                return False
            seen.append((end_index, leader_id))
            return len(seen) > 1 and seen[-1] == seen[-2]

        self._wait(settled, seconds, "members that hold and have committed the same", every=0.1)
        end_index = seen[-1][0]
        assert isinstance(end_index, int)
        return end_index

    def wait_until(self, condition: Callable[[], bool], what: str, *, seconds: float = 30.0) -> None:
        """Until C{condition} holds. C{what} says what is wrong if that takes too long."""
        self._wait(condition, seconds, what)

    def _wait(self, condition: object, seconds: float, what: str, every: float = 0.05) -> None:
        try:
            wait_until(condition, seconds=seconds, what=what, every=every)  # type: ignore[arg-type]
        except ChildError as error:
            tails = "\n".join(member.log_tail() for member in self.members.values())
            said = {peer_id: str(member.metadata(seconds=0.5)) for peer_id, member in self.members.items()}
            raise ChildError(f"{error}\n{said}\n{tails}") from None


def now_ms() -> float:
    """Monotonic milliseconds, the same clock in every process of this machine."""
    return time.monotonic() * 1000


def ended_well(status: int) -> bool:
    """Whether a member ended cleanly after SIGTERM: Twisted ends itself by the same signal."""
    return status in (0, -signal.SIGTERM)
