# -*- test-case-name: tests.hostile.test_soak -*-
"""
The network of a soak: a namespace for each member behind one bridge, if this process may make them; else
loopback, where nothing can be cut.

The soak itself is in a namespace of its own then (L{enter}), so nothing of this is seen outside, and all of
it is gone when its processes have ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.processes.children import Child, free_ports

_INSIDE = "DLEDGER_SOAK_INSIDE"
_UNSHARE = ("unshare", "--net", "--mount", "--map-root-user")
_PORT = 20911
#: Of the bridge, where clients are.
CLIENTS = "10.77.0.1"


def enter(arguments: Sequence[str]) -> bool:
    """
    Begin this program again in namespaces of its own, if that can be done; then this call does not return.

    @return: whether it is in them.
    """
    if _INSIDE in os.environ:
        return True
    try:
        probe = ["sh", "-c", "ip link add br0 type bridge && mount -t tmpfs tmpfs /mnt"]
        if subprocess.run([*_UNSHARE, *probe], capture_output=True).returncode:
            return False
    except FileNotFoundError:
        return False
    os.environ[_INSIDE] = "1"
    sys.stdout.flush()
    os.execvp(_UNSHARE[0], [*_UNSHARE, sys.executable, "-m", "tests.soak.run", *arguments])


class Network:
    """
    @ivar addresses: C{host:port} of each member.
    @ivar may_cut: whether links can be cut.
    """

    def __init__(self, ids: Sequence[str], directory: Path, *, may_cut: bool) -> None:
        self.may_cut = may_cut
        self._holders: dict[str, Child] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        if not may_cut:
            ports = free_ports(len(ids))
            self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(ids, ports, strict=True)}
            return
        self._hosts = {name: f"10.77.0.{10 + number}" for number, name in enumerate(ids)}
        self.addresses = {name: f"{host}:{_PORT}" for name, host in self._hosts.items()}
        _run("ip link set lo up", "ip link add br0 type bridge", "ip link set br0 up",
             f"ip addr add {CLIENTS}/24 dev br0")
        for name, host in self._hosts.items():
            script = "echo ready && exec sleep 1000000"
            holder = Child(f"network of {name}", ["unshare", "--net", "sh", "-c", script],
                           log_path=directory / "network.log", talks=True)
            holder.start()
            assert holder.pipes[1].readline() == b"ready\n", holder.log_tail()
            self._holders[name] = holder
            _run(f"ip link add v{name} type veth peer name eth0 netns {holder.pid}",
                 f"ip link set v{name} master br0", f"ip link set v{name} up")
            self._inside(name, "ip link set lo up", f"ip addr add {host}/24 dev eth0", "ip link set eth0 up")

    def prefix(self, name: str) -> list[str]:
        """Words before the command of a member."""
        return ["nsenter", "-t", str(self._holders[name].pid), "-n", "--"] if self.may_cut else []

    def _inside(self, name: str, *commands: str) -> None:
        _run(*(" ".join([*self.prefix(name), command]) for command in commands))

    def isolate(self, name: str) -> None:
        """Nothing comes from it, and nothing to it."""
        _run(f"ip link set v{name} down")
        self._down.add(name)

    def block(self, sender: str, receiver: str) -> None:
        """Nothing goes from one member to another; what that one sends arrives."""
        self._inside(sender, f"ip route add blackhole {self._hosts[receiver]}/32")
        self._blocked.add((sender, receiver))

    def heal(self) -> None:
        """Everything arrives."""
        for name in self._down:
            _run(f"ip link set v{name} up")
        for sender, receiver in self._blocked:
            self._inside(sender, f"ip route del blackhole {self._hosts[receiver]}/32")
        self._down.clear()
        self._blocked.clear()

    def close(self) -> None:
        """End the namespaces."""
        for holder in self._holders.values():
            holder.kill()


def _run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True)
