# -*- test-case-name: tests.machine.test_loading -*-
"""
Finds the state machine that an operator names as C{package.module:factory}, and makes its runner at a member.
"""

from __future__ import annotations

import importlib
import os
import re

from dledger.base.disk.disk import Disk
from dledger.machine.files.snapshots import SnapshotDirectory
from dledger.machine.guarded import GuardedMachine, MachineFailed, sentence_of
from dledger.machine.requests import MachineHandler
from dledger.machine.runner import MachineRunner
from dledger.machine.state_machine import MachineFactory, StateMachine
from dledger.machine.waiting import WaitBounds
from dledger.machine.writing import SnapshotsDue
from dledger.node.host import MachineHost
from dledger.node.node import Node
from dledger.node.requests.machine_requests import Hosting

_FORM = "write package.module:factory, where factory() makes a dledger.machine.StateMachine"
#: The most bytes of a machine's name, because the header of a snapshot holds the name.
NAME_BYTES_MAX = 255


def load_factory(text: str) -> MachineFactory:
    """
    Import the factory that C{text} names. It is called once, to see that it makes a state machine.

    @param text: C{package.module:factory}; the factory is called without arguments.
    @raise ValueError: the text has another form, the module cannot be imported or has no such factory, or the
        factory fails or makes no usable state machine. The message says what is allowed.
    """
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
        raise ValueError(f"machine={text!r}: {_FORM}")
    module_name, _, name = text.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # even SystemExit: a script without a __main__ guard ends on import
        raise ValueError(
            f"machine={text!r}: {module_name} cannot be imported ({sentence_of(error)}): "
            "correct it, or set PYTHONPATH"
        ) from error
    factory: MachineFactory | None = getattr(module, name, None)
    if not callable(factory):
        raise ValueError(f"machine={text!r}: {module_name} has no function or class {name!r}: {_FORM}")
    try:
        machine: object = factory()
    except BaseException as error:
        raise ValueError(
            f"machine={text!r}: {name}() raised {sentence_of(error)}: it must make a machine without "
            "arguments"
        ) from error
    if not isinstance(machine, StateMachine):
        raise ValueError(f"machine={text!r}: {name}() made a {type(machine).__name__}: {_FORM}")
    if not machine.name or len(machine.name.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"machine={text!r}: its name={machine.name!r} must have 1 to {NAME_BYTES_MAX} bytes")
    if not 0 <= machine.version < 1 << 31:
        raise ValueError(f"machine={text!r}: its version={machine.version} must be from 0 to 2147483647")
    return factory


def hosting_of(
    node: Node, factory: MachineFactory, host: MachineHost, *, disk: Disk
) -> Hosting:
    """
    Make the state machine of a member, its runner, and the handler that answers requests to it.

    The member's options give the bounds. Snapshots are files in the directory C{machine} of the member; a
    member that keeps its log in memory has no snapshots.

    @param factory: as L{load_factory} returned it.
    @param disk: holds the snapshots.
    @raise ValueError: the factory does not make a machine now, although it made one before.
    """
    config = node.config
    try:
        machine = GuardedMachine(factory)
    except MachineFailed as failed:
        raise ValueError(str(failed)) from failed
    snapshots = SnapshotDirectory(
        disk, os.path.join(config.self_path, "machine"), machine=machine.name,
        machine_version=machine.version, oldest_version=machine.oldest_version,
        proves_oldest=config.machine_keep_entries > 0, rests=host.rests,
    )
    runner = MachineRunner(
        factory, node, host,
        waits=WaitBounds(waits_max=config.max_pending_requests_num, wait_ms=config.max_wait_ack_time_ms),
        snapshots=snapshots, source=node.handlers.snapshots, due=SnapshotsDue(
            entries=config.machine_snapshot_entries, of_bytes=config.machine_snapshot_bytes
        ),
    )
    handler = MachineHandler(config, runner, node.handlers.machine_surroundings)
    return Hosting(machine=runner, handler=handler)
