# -*- test-case-name: tests.processes.test_load -*-
"""
Groups of three members that can be loaded, paused while others are measured, and ended.

Rule: a group that is not being measured is stopped by signal: idle members (Java's more than ours) use
processor time, which would falsify the figures of the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import attrs

from benchmarks.load import LoadError, Sample, load_in_child
from benchmarks.peers import PEERS, MissingPeerError, check_names
from dledger.values.rights import ClientRole
from dledger.values.tls_files import TlsFiles
from tests.base.keys import KeyRoom
from tests.processes.children import Child, ChildError, TalkingChild
from tests.processes.members import Group, Member

GROUP_NAME = "bench"


class MeasuredGroup:
    """
    The common interface of the groups.

    @ivar flush: C{async} or C{sync}.
    @ivar systems: name of a system in the results, to the generator that loads it.
    @ivar train_s: seconds of load before the first measurement (a JIT needs some).
    @ivar links_max: connections that its generator can keep busy.
    @ivar version: of the program, where it is not ours.
    """

    flush: str = "async"
    systems: dict[str, str]
    train_s = 1.0
    links_max = 10_000
    version = ""

    @property
    def children(self) -> Iterable[Child]:
        """Its members."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the members and wait for a leader."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until the leader has stayed the same for a while."""
        raise NotImplementedError

    def measure(
        self, wire: str, *, body_bytes: int, links: int, window: int, warm_up_s: float, seconds: float
    ) -> Sample:
        """Run the generator once. @raise LoadError: the run could not be finished."""
        raise NotImplementedError

    def pause(self) -> None:
        """Stop the members; they use no processor time."""
        for child in self.children:
            child.pause()

    def resume(self) -> None:
        """Continue the members, and wait for a leader."""
        for child in self.children:
            child.resume()
        self.settle()

    def rss_bytes(self) -> int:
        """Resident memory of the largest member."""
        return max(child.rss_bytes() for child in self.children)

    def cpu_seconds(self) -> float:
        """Processor time of all members so far."""
        return sum(child.cpu_seconds() for child in self.children)

    def kill(self) -> None:
        """End the members."""
        for child in self.children:
            child.kill()


class OurGroup(MeasuredGroup):
    """Three members of ours, as C{twistd} processes."""

    def __init__(
        self, directory: Path, *, flush: str, systems: dict[str, str], secured: bool = False
    ) -> None:
        """@param secured: with TLS between members, and for the generator."""
        self.flush = flush
        self.systems = systems
        self._keys: TlsFiles | None = None
        at = directory / (f"ours-{flush}-tls" if secured else f"ours-{flush}")
        self._group = Group(at, name=GROUP_NAME, options={"flush_disk_type": flush})
        if secured:
            room = KeyRoom(at / "keys")
            self._keys = room.client("load", ClientRole.APPEND)
            for peer_id in self._group.peers:
                files = {f"tls_{name}": path for name, path in attrs.asdict(room.member(peer_id)).items()}
                self._group.members[peer_id] = Member(
                    peer_id, self._group.peers, at / peer_id, group=GROUP_NAME,
                    options={"flush_disk_type": flush, "tls_plain_hosts": "127.0.0.1", **files},
                )
        self._leader_id = ""

    @property
    def children(self) -> Iterable[Child]:
        """Its members."""
        return self._group.members.values()

    def start(self) -> None:
        """Start the members and wait for a leader."""
        self._group.start()
        self.settle()

    def settle(self) -> None:
        """Wait until the leader has stayed the same for longer than a follower's patience."""
        seen: list[str] = []
        deadline = time.monotonic() + 30
        while len(seen) < 6 or len(set(seen[-6:])) > 1:
            seen.append(self._group.leader(seconds=max(0.1, deadline - time.monotonic())))
            time.sleep(0.3)
        self._leader_id = seen[-1]

    def measure(
        self, wire: str, *, body_bytes: int, links: int, window: int, warm_up_s: float, seconds: float
    ) -> Sample:
        """Run the generator once against the leader."""
        return load_in_child(
            address=self._group.peers[self._leader_id], remote_id=self._leader_id, group=GROUP_NAME,
            wire=wire, links=links, window=window, body_bytes=body_bytes, warm_up_s=warm_up_s,
            seconds=seconds, peers=self._group.peers_text, keys=self._keys,
        )


class JavaGroup(MeasuredGroup):
    """Three members of Java DLedger; batch push on or off (off is its default)."""

    train_s = 5.0

    def __init__(self, directory: Path, *, batch_push: bool) -> None:
        from tests.interop.java import JavaMember, class_path
        from tests.processes.children import free_ports

        class_path()
        name = "java-dledger-batch" if batch_push else "java-dledger"
        self.systems = {name: "remoting"}
        self._peers = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(3))}
        self._members = {
            peer_id: JavaMember(
                peer_id, self._peers, directory / name / peer_id, group=GROUP_NAME,
                options={"enableBatchPush": batch_push},
            )
            for peer_id in self._peers
        }
        self._leader_id = ""

    @property
    def children(self) -> Iterable[Child]:
        """Its members."""
        return self._members.values()

    def start(self) -> None:
        """Start the members and wait for a leader."""
        for member in self._members.values():
            member.start()
        for member in self._members.values():
            member.wait_started(seconds=60.0)
        self.settle()

    def settle(self) -> None:
        """Wait until the leader has stayed the same for two seconds, its heartbeat interval."""
        from tests.interop.java import wait_leader

        deadline = time.monotonic() + 60
        self._leader_id = wait_leader(self._members, seconds=60)
        since = time.monotonic()
        while time.monotonic() < since + 2.2:
            time.sleep(0.2)
            leader_id = wait_leader(self._members, seconds=max(0.1, deadline - time.monotonic()))
            if leader_id != self._leader_id:
                self._leader_id, since = leader_id, time.monotonic()

    def measure(
        self, wire: str, *, body_bytes: int, links: int, window: int, warm_up_s: float, seconds: float
    ) -> Sample:
        """Run the generator once against the leader."""
        return load_in_child(
            address=self._peers[self._leader_id], remote_id=self._leader_id, group=GROUP_NAME, wire=wire,
            links=links, window=window, body_bytes=body_bytes, warm_up_s=warm_up_s, seconds=seconds,
        )


class PySyncObjGroup(MeasuredGroup):
    """Three processes of PySyncObj; the leader's process proposes the commands, as there is no client."""

    links_max = 1

    def __init__(self, directory: Path) -> None:
        from benchmarks.pysyncobj_member import member_command
        from tests.processes.children import free_ports

        self.systems = {"pysyncobj": "own"}
        addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self._members = [
            TalkingChild(
                f"pysyncobj {number}", member_command(address, addresses, directory / f"pysyncobj-{number}"),
                log_path=directory / f"pysyncobj-{number}.log",
            )
            for number, address in enumerate(addresses)
        ]

    @property
    def children(self) -> Iterable[Child]:
        """Its members."""
        return self._members

    def start(self) -> None:
        """Start the members and wait for a leader."""
        for member in self._members:
            member.start()
        for member in self._members:
            member.wait_started()
        self.settle()

    def settle(self) -> None:
        """Wait until a member says that it leads."""
        deadline = time.monotonic() + 30
        while not any(member.ask("leads") == "yes" for member in self._members):
            if time.monotonic() > deadline:
                raise ChildError("no leader of the PySyncObj members within 30 s")
            time.sleep(0.2)

    def measure(
        self, wire: str, *, body_bytes: int, links: int, window: int, warm_up_s: float, seconds: float
    ) -> Sample:
        """Run the generator once, inside the leader."""
        import json

        for member in self._members:
            if member.ask("leads") == "yes":
                answer = member.ask(
                    f"load {body_bytes} {window} {warm_up_s} {seconds}", seconds=warm_up_s + seconds + 30
                )
                return Sample(**json.loads(answer))
        raise LoadError("no PySyncObj member leads")


@attrs.frozen(kw_only=True)
class Absent:
    """A peer that cannot be measured here, and why."""

    name: str
    reason: str


#: Peers beside those of L{benchmarks.peers}: others that replicate a log, and other clients of ours.
KNOWN = ("java", "java-batch", "pysyncobj", "tls", "aio", "exact", *PEERS)


def make_groups(
    directory: Path, *, peers: Iterable[str], flushes: Iterable[str], is_strict: bool = False
) -> tuple[list[MeasuredGroup], list[Absent]]:
    """
    Make the groups that were asked for, without starting them.

    @param peers: of L{KNOWN}; C{tls} for ours with TLS, C{aio} for our client for asyncio, C{exact} for ours
        with numbered appends.
    @param flushes: flush types of our own groups.
    @param is_strict: the caller wants these peers and no fewer.
    @raise ValueError: a peer is not known, or C{is_strict} and a peer cannot be measured here.
    """
    wanted = [*peers]
    check_names(wanted, KNOWN)
    systems = {"dledger-binary": "client", "dledger-native": "native", "dledger-remoting": "remoting"}
    if "exact" in wanted:
        wanted.remove("exact")
        systems["dledger-exact"] = "exact"
    if "aio" in wanted:
        wanted.remove("aio")
        systems["dledger-aio"] = "aio"
    groups: list[MeasuredGroup] = [OurGroup(directory, flush=flush, systems=systems) for flush in flushes]
    absent = []
    for peer in wanted:
        try:
            groups.append(_make_group(peer, directory))
        except MissingPeerError as error:
            absent.append(Absent(name=peer, reason=str(error)))
        except Exception as error:
            absent.append(Absent(name=peer, reason=f"{type(error).__name__}: {error}"))
    if absent and is_strict:
        raise ValueError("\n".join(f"{one.name} cannot be measured: {one.reason}" for one in absent))
    return groups, absent


def _make_group(peer: str, directory: Path) -> MeasuredGroup:
    if peer in PEERS:
        from benchmarks.peer_groups import make_peer

        return make_peer(peer, directory)
    if peer == "tls":
        return OurGroup(directory, flush="async", systems={"dledger-binary-tls": "client"}, secured=True)
    if peer == "pysyncobj":
        return PySyncObjGroup(directory)
    return JavaGroup(directory, batch_push=peer == "java-batch")
