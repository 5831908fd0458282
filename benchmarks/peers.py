# -*- test-case-name: tests.test_benchmarks -*-
"""
The systems that are measured beside ours: their programs, and what one operation of each means.

A figure is worth little without the promise behind it, so each system reports its operation and its
durability. Peers are not installed by this repository; a message names the Debian package.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterable

import attrs

#: Durability classes: what holds an entry when its acknowledgement is sent.
MEMORY = "memory on a majority"
FSYNC = "fsync on a majority, each"


class MissingPeerError(Exception):
    """A peer cannot be measured here; the message says what to install."""


@attrs.frozen(kw_only=True)
class Peer:
    """
    A system that is not ours.

    @ivar name: for C{--peers}, and in the results.
    @ivar flush: C{async} or C{sync}: the rows of ours that it may be compared with.
    @ivar durability: of an acknowledged operation.
    @ivar program: that must be there; empty for none.
    @ivar package: Debian's, with the program.
    @ivar least: version of the program that is needed.
    @ivar module: of Python, that its generator needs.
    """

    name: str
    flush: str
    durability: str
    operation: str
    program: str = ""
    package: str = ""
    least: tuple[int, ...] = ()
    module: str = ""


_PUBLISH = "publish to a JetStream stream with 3 replicas, acknowledged by its leader"
_XADD = "XADD; WAIT 1 after the share of the window of a connection"

#: NATS 2.10 knows the option, but syncs only the leader's copy before it acknowledges: its raft log is synced
#: every five minutes. From 2.11 on the option is for both.
_NATS_ALWAYS = (2, 11)

PEERS = {peer.name: peer for peer in (
    Peer(name="nats", flush="async", durability=f"{MEMORY}, fsync every two minutes", operation=_PUBLISH,
         program="nats-server", package="nats-server"),
    Peer(name="nats-always", flush="sync", durability=FSYNC, operation=_PUBLISH, program="nats-server",
         package="nats-server", least=_NATS_ALWAYS),
    Peer(name="etcd", flush="sync", durability=FSYNC, operation="put of a new key by gRPC", program="etcd",
         package="etcd-server", module="grpc"),
    Peer(name="redis", flush="async", durability="memory on 2 of 3, fsync every second; no consensus",
         operation=_XADD, program="redis-server", package="redis-server"),
    Peer(name="redis-always", flush="sync", operation=_XADD, program="redis-server", package="redis-server",
         durability="fsync on the primary, each, memory on a replica; no consensus"),
)}

#: Operation and durability of the other systems, ours first; by name and flush.
_APPEND = "append of one entry"
OTHERS = {
    ("dledger", "async"): (_APPEND, f"{MEMORY}, fsync soon"),
    ("dledger", "sync"): (_APPEND, FSYNC),
    ("java-dledger", "async"): (_APPEND, f"{MEMORY}, fsync soon"),
    ("pysyncobj", "async"): ("replicated call, from within the leader", f"{MEMORY}, no fsync"),
}


def promise_of(system: str, flush: str) -> tuple[str, str]:
    """Operation and durability of a system in the results."""
    peer = PEERS.get(system)
    if peer is not None:
        return peer.operation, peer.durability
    family = system if system.startswith("pysyncobj") else "-".join(system.split("-")[:2])
    if family.startswith("dledger"):
        family = "dledger"
    return OTHERS[family, flush]


def version_in(text: str) -> tuple[int, ...]:
    """The first version number in a program's answer. @raise MissingPeerError: there is none."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if found is None:
        raise MissingPeerError(f"no version in {text[:80]!r}")
    return tuple(int(part) for part in found.groups() if part is not None)


def find_program(peer: Peer) -> tuple[str, str]:
    """
    @return: path of the program, and its version.
    @raise MissingPeerError: it, or a module for its generator, is not installed, or is too old.
    """
    path = shutil.which(peer.program) or shutil.which(peer.program, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise MissingPeerError(
            f"{peer.name} needs the program {peer.program}: apt-get install {peer.package}"
        )
    if peer.module and importlib.util.find_spec(peer.module) is None:
        raise MissingPeerError(f"{peer.name} needs the module {peer.module}: pip install '.[bench]'")
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    version = version_in(answer.stdout + answer.stderr)
    shown = ".".join(map(str, version))
    if version < peer.least:
        raise MissingPeerError(
            f"{peer.name} needs {peer.program} {'.'.join(map(str, peer.least))} or newer, which Debian 12 "
            f"does not have; {path} is {shown}"
        )
    return path, shown


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """@raise ValueError: one of the names is not known."""
    allowed = [*known]
    for name in names:
        if name not in allowed:
            raise ValueError(f"{name} is no peer; the peers are {', '.join(allowed)}")
