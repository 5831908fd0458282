# -*- test-case-name: tests.test_benchmarks -*-
"""
Groups of three servers of NATS, etcd and Redis, on free ports and in directories of the run.
"""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.groups import MeasuredGroup
from benchmarks.load import Sample, run_generator
from benchmarks.peer_load import STREAM
from benchmarks.peers import PEERS, Peer, find_program
from tests.processes.children import Child, ChildError, free_ports

_READY_S = 60.0
#: A leader that has stayed for longer than every time-out of an election of these systems.
_STEADY_S = 2.2
_NAMES = ("n0", "n1", "n2")


class PeerGroup(MeasuredGroup):
    """
    Three servers and the generator for them.

    Invariant: C{target} is the address of the leader or primary, once settled.

    @ivar version: of the program.
    """

    generator: str

    def __init__(self, peer: Peer, directory: Path, ports: int) -> None:
        """@raise MissingPeerError: the program is missing."""
        self._program, self.version = find_program(peer)
        self.peer = peer
        self.flush = peer.flush
        self.systems = {peer.name: self.generator}
        self.train_s = 2.0
        self._at = directory / peer.name
        self._ports = [free_ports(ports) for _name in _NAMES]
        self.target = ""
        self._servers = [
            Child(f"{peer.name} {name}", self.command(number), log_path=self._at / f"{name}.log")
            for number, name in enumerate(_NAMES)
        ]

    def command(self, number: int) -> list[str]:
        """The command line of one server."""
        raise NotImplementedError

    def leader(self) -> str:
        """Address of the server that takes the load; empty if there is none, or a follower is missing."""
        raise NotImplementedError

    def address(self, number: int) -> str:
        """Where a server takes clients."""
        return f"127.0.0.1:{self._ports[number][0]}"

    @property
    def children(self) -> Iterable[Child]:
        """Its servers."""
        return self._servers

    def start(self) -> None:
        """Start the servers and wait for a leader. @raise ChildError: one ended, or it took too long."""
        for number, server in enumerate(self._servers):
            (self._at / _NAMES[number]).mkdir(parents=True, exist_ok=True)
            server.start()
        self.settle()

    def settle(self) -> None:
        """Wait until the leader has stayed the same for L{_STEADY_S}."""
        deadline = time.monotonic() + _READY_S
        since, seen = time.monotonic(), ""
        while not seen or time.monotonic() - since < _STEADY_S:
            for server in self._servers:
                if not server.is_running:
                    raise ChildError(f"{server.name} ended\n{server.log_tail()}")
            try:
                now = self.leader()
            except (OSError, ValueError, KeyError):
                now = ""
            if now != seen or not now:
                since, seen = time.monotonic(), now
            if time.monotonic() > deadline:
                raise ChildError(
                    f"{self.peer.name}: no steady leader in {_READY_S:g} s\n{self._servers[0].log_tail()}"
                )
            time.sleep(0.2)
        self.target = seen

    def measure(
        self, wire: str, *, body_bytes: int, links: int, window: int, warm_up_s: float, seconds: float
    ) -> Sample:
        """Run the generator once against the leader."""
        return run_generator(
            [sys.executable, "-m", "benchmarks.peer_load", wire, self.target, "--links", str(links),
             "--window", str(window), "--body-bytes", str(body_bytes), "--warm-up", str(warm_up_s),
             "--seconds", str(seconds)],
            what=f"{self.peer.name} at {self.target}", seconds=warm_up_s + seconds,
        )


def _lines_of(address: str, request: bytes, is_whole: Callable[[bytes], bool]) -> bytes:
    """Send a request, and read until the answer is whole or the server ends the connection."""
    host, _colon, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=2.0) as link:
        link.settimeout(2.0)
        link.sendall(request)
        data = b""
        while not is_whole(data):
            piece = link.recv(65536)
            if not piece:
                break
            data += piece
    return data


class NatsGroup(PeerGroup):
    """JetStream in a cluster; the stream has three replicas in files, and its leader takes the load."""

    generator = "nats"

    def __init__(self, peer: Peer, directory: Path) -> None:
        super().__init__(peer, directory, 2)
        self._is_made = False

    def command(self, number: int) -> list[str]:
        """With a file of options, in which only JetStream's can be set."""
        path = self._at / f"{_NAMES[number]}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        routes = ", ".join(f'"nats-route://127.0.0.1:{ports[1]}"' for ports in self._ports)
        always = "sync_interval: always" if self.peer.name == "nats-always" else ""
        path.write_text(
            f"server_name: {_NAMES[number]}\n"
            f"listen: {self.address(number)}\n"
            f'jetstream {{ store_dir: "{self._at / _NAMES[number]}"\n {always} }}\n'
            f"cluster {{ name: bench, listen: 127.0.0.1:{self._ports[number][1]}, routes: [{routes}] }}\n"
        )
        return [self._program, "-c", str(path)]

    def _ask(self, subject: str, payload: bytes = b"") -> dict[str, Any]:
        """A request of JetStream's API. @raise OSError: no answer. @raise ValueError: none of its kind."""
        request = (
            b'CONNECT {"verbose":false}\r\nSUB answer 1\r\nPUB %s answer %d\r\n%s\r\n'
            % (subject.encode(), len(payload), payload)
        )
        data = _lines_of(
            self.address(0), request, lambda data: b"MSG answer" in data and data.endswith(b"}\r\n")
        )
        answer: dict[str, Any] = json.loads(data[data.index(b"MSG answer") :].split(b"\r\n")[1])
        return answer

    def leader(self) -> str:
        """Of the stream, which is made when the cluster can; all replicas must be current."""
        if not self._is_made:
            options = {"name": STREAM, "subjects": [STREAM], "num_replicas": 3, "storage": "file",
                       "retention": "limits", "discard": "old", "max_age": 0}
            answer = self._ask(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(options).encode())
            self._is_made = "config" in answer
            if not self._is_made:
                return ""
        cluster = self._ask(f"$JS.API.STREAM.INFO.{STREAM}")["cluster"]
        replicas = cluster.get("replicas", ())
        if len(replicas) < 2 or not all(replica.get("current") for replica in replicas):
            return ""
        return self.address(_NAMES.index(cluster["leader"]))


class EtcdGroup(PeerGroup):
    """Three members of etcd with their usual options; the leader takes the load."""

    generator = "etcd"
    links_max = 1  # (the channels of one process share grpcio's threads, which would be measured)

    def __init__(self, peer: Peer, directory: Path) -> None:
        super().__init__(peer, directory, 2)

    def command(self, number: int) -> list[str]:
        """The quota is above what a run writes."""
        name, here = _NAMES[number], f"http://{self.address(number)}"
        there = [f"http://127.0.0.1:{ports[1]}" for ports in self._ports]
        return [
            self._program, "--name", name, "--data-dir", str(self._at / name / "data"),
            "--listen-client-urls", here, "--advertise-client-urls", here,
            "--listen-peer-urls", there[number], "--initial-advertise-peer-urls", there[number],
            "--initial-cluster", ",".join(f"{one}={url}" for one, url in zip(_NAMES, there, strict=True)),
            "--initial-cluster-state", "new", "--initial-cluster-token", "bench",
            "--quota-backend-bytes", str(8 << 30), "--log-level", "warn",
        ]

    def leader(self) -> str:
        """As every member says."""
        leaders, members = set(), {}
        for number in range(len(_NAMES)):
            request = urllib.request.Request(f"http://{self.address(number)}/v3/maintenance/status", b"{}")
            with urllib.request.urlopen(request, timeout=2.0) as answer:
                status = json.load(answer)
            leaders.add(status.get("leader", ""))
            members[status["header"]["member_id"]] = number
        return self.address(members[leaders.pop()]) if len(leaders) == 1 else ""


class RedisGroup(PeerGroup):
    """A primary and two replicas, with append-only files."""

    generator = "redis"

    def __init__(self, peer: Peer, directory: Path) -> None:
        super().__init__(peer, directory, 1)

    def command(self, number: int) -> list[str]:
        """No snapshots besides those that replication makes."""
        command = [
            self._program, "--port", str(self._ports[number][0]), "--bind", "127.0.0.1",
            "--dir", str(self._at / _NAMES[number]), "--save", "", "--appendonly", "yes",
            "--appendfsync", "always" if self.peer.name == "redis-always" else "everysec",
            "--repl-diskless-sync-delay", "0", "--daemonize", "no",
        ]
        return command + (["--replicaof", "127.0.0.1", str(self._ports[0][0])] if number else [])

    def leader(self) -> str:
        """The primary, when both replicas follow."""
        data = _lines_of(
            self.address(0), b"INFO replication\r\n", lambda data: b"repl_backlog_histlen" in data
        )
        return self.address(0) if data.count(b"state=online") == 2 else ""


_MAKERS: dict[str, Callable[[Peer, Path], PeerGroup]] = {
    "nats": NatsGroup, "etcd": EtcdGroup, "redis": RedisGroup
}


def make_peer(name: str, directory: Path) -> PeerGroup:
    """
    The servers of a peer, not started.

    @raise MissingPeerError: its program is not installed; the message names the package.
    """
    return _MAKERS[name.split("-")[0]](PEERS[name], directory)
