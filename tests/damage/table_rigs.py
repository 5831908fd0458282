# -*- test-case-name: tests.damage.test_file_table -*-
"""
A member, a broker, a broker on a raft log and a name server, each alone, on a L{FaultyDisk}: they start, do
something, and end; their promises are checked afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import attrs
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from dledger.base.disk.file_table import (
    BROKER_FILES,
    HOLES,
    MEMBER_FILES,
    NAME_SERVER_FILES,
    RAFT_BROKER_FILES,
    FileRow,
)
from dledger.machine.loading import hosting_of
from dledger.node.host import MachineHost
from dledger.node.member_process import MemberEndpoints, MemberExtras, MemberProcess
from dledger.node.node import Node
from dledger.node.requests.machine_requests import Hosting
from dledger.node.service import MemberService
from dledger.node.threads import MemberThreads
from dledger.rocketmq.namesrv.key_values import KeyValues
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.rocketmq.verify.store_check import verify_store
from dledger.storage.manifests.archived_note import ArchivedNote, write_note
from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DamagedEntryError, DirectoryError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.lineage import Lineage, Standing
from dledger.values.ledger.membership import Membership
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import decode_message
from tests.broker.send_support import send_of
from tests.broker.support import inline
from tests.broker.test_service import WALL_S, Endpoint, ServiceCase
from tests.damage.faulty_disk import FaultyDisk
from tests.machine.machines import Journal
from tests.node.rig import FakeThread
from tests.node.test_service import FakeFlushThread
from tests.raft_broker.rig import RaftCase


class TableRig:
    """
    One directory, and the process that has it.

    @cvar table: of its files. @cvar inner: of files of another process, which is a rig of its own.
    @cvar root: the directory.
    @ivar said: everything that it logged, or gave as the reason of its end.
    @ivar ended: why the process ended; empty: it did not.
    @ivar promised: bodies that were answered with success. @ivar sent: all bodies.
    """

    table: ClassVar[tuple[FileRow, ...]]
    inner: ClassVar[tuple[FileRow, ...]] = ()
    root: ClassVar[str]

    def __init__(self, forget: Callable[[], object], files: dict[str, bytes] | None = None) -> None:
        """@param forget: forgets the errors that were logged, for trial."""
        self._forget = forget
        self.disk = FaultyDisk(files or {}, now_s=WALL_S)
        self.said: list[str] = []
        self.ended: list[str] = []
        self.promised: list[bytes] = []
        self.sent: list[bytes] = []
        self._number = -1

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Keep what is logged meanwhile."""
        with capturedLogs() as events:
            yield
        self.said += [formatEvent(event) or "" for event in events]
        self._forget()

    def names(self) -> list[str]:
        """The files, by their paths below the directory."""
        return sorted(path.removeprefix(f"{self.root}/") for path in self.disk.content
                      if path.startswith(f"{self.root}/"))

    def resume(self, sent: list[bytes]) -> None:
        """These were sent before."""
        self.sent = list(sent)
        self._number = len(sent) + 1

    def body(self) -> bytes:
        """Another one."""
        self._number += 1
        self.sent.append(b"body %d " % self._number + b"x" * 100)
        return self.sent[-1]

    # -- what each kind does -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process."""
        raise NotImplementedError

    def work(self) -> None:
        """Let it do what writes its files: for half a minute."""
        raise NotImplementedError

    def stop(self) -> None:
        """In order, if it runs."""
        raise NotImplementedError

    def readable(self) -> list[bytes]:
        """The bodies that readers get, in order."""
        raise NotImplementedError

    def findings(self) -> list[str]:
        """The files in which C{dledger verify} finds something."""
        raise NotImplementedError

    def furnish(self) -> None:
        """Write the files that only others, or other times, write; nothing runs."""


class MemberRig(TableRig):
    """A member with a state machine."""

    table = MEMBER_FILES
    root = "base/dledger-n0"
    config = DLedgerConfig(
        store_base_dir="base", peers="n0-127.0.0.1:20911", mapped_file_size_for_entry_data=1024,
        mapped_file_size_for_entry_index=320, machine_snapshot_entries=20, push_chunk_bytes=256,
        check_point_interval=1000,
    )

    def start(self) -> None:
        self.clock, thread = Clock(), FakeFlushThread()
        self.service = MemberService(
            self.config, MemberProcess(
                reactor=self.clock, disk=self.disk, rng=random.Random(1), failed=self.ended.append,
                threads=MemberThreads.of(self.clock, flush=thread),
            ),
            MemberEndpoints(listen=Endpoint(20911)),  # type: ignore[arg-type]
            MemberExtras(make_machine=self._machine),
        )
        with self.heard():
            self.service.startService()
            self._pass(3)

    def _machine(self, node: Node, _: object) -> Hosting:
        host = MachineHost(self_id="n0", clock=self.clock, run_in_thread=FakeThread().run)
        return hosting_of(node, Journal, host, disk=self.disk)

    def _pass(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.1)):
            self.clock.advance(0.1)

    def work(self) -> None:
        with self.heard():
            for _ in range(8):
                for _ in range(3):
                    self._append(self.body())
                self._pass(1.5)
            node = self.service.node
            if node is not None and not self.ended:
                self._meet()
            self._pass(12)

    def _append(self, body: bytes) -> None:
        node = self.service.node
        if node is None or self.ended or not node.is_running:
            return
        node.append(body).addCallbacks(lambda _: self.promised.append(body), lambda _: None)

    def _meet(self) -> None:
        store: Any = self.service._store
        lineage = Lineage(incarnation=7, starts=len(self.sent), run=1, standing=Standing.TRUSTED)
        store.identity.others.meet("n1", lineage)
        try:  # as dledger archive --note
            write_note(self.disk, self.root, ArchivedNote(
                end_index=store.ledger_end_index, end_position=store.end_position, target="t"))
        except OSError as error:
            self.said.append(str(error))

    def stop(self) -> None:
        with self.heard():
            self.service.stopService()
            self._pass(8)

    def readable(self) -> list[bytes]:
        store = FileStore.open(self.config, self.disk)
        found: list[bytes] = []
        try:
            for index in range(max(store.ledger_begin_index, 0), store.ledger_end_index + 1):
                try:
                    batch = store.read_batch(index, max_count=1, max_bytes=0)
                except DamagedEntryError:
                    continue
                body = batch.records[48:]
                if body.startswith(b"body "):
                    found.append(body)
        finally:
            store.abandon()
        return found

    def findings(self) -> list[str]:
        return [one.file for one in verify_directory(self.disk, self.root).findings]

    def furnish(self) -> None:
        store = FileStore.open(self.config, self.disk)
        store.append_configuration(Membership(voters=dict(self.config.peers)), store.ledger_end_term)
        store.record_commit(store.ledger_end_index)
        store.clean_close()
        self.disk.write_file(f"{self.root}/machine/skipping-9999-1", b"")


class HoledMemberRig(MemberRig):
    """A member that has lost an entry, and nobody has it."""

    table = (HOLES,)
    inner = MEMBER_FILES

    def furnish(self) -> None:
        path = f"{self.root}/data/{0:020d}"
        data = self.disk.content[path]
        self.disk.put(path, data.replace(b"body 1 ", b"Body 1 "))
        self.sent = [one for one in self.sent if not one.startswith(b"body 1 ")]

    def findings(self) -> list[str]:
        return [one.file for one in verify_directory(self.disk, self.root).findings
                if "not sound" in one.sentence]


class _Alone(ServiceCase):
    def runTest(self) -> None:
        """Nothing: its parts are used."""


class _AloneOnRaft(RaftCase):
    member_options: ClassVar[Mapping[str, object]] = {"mapped_file_size_for_entry_index": 320}

    def runTest(self) -> None:
        """Nothing: its parts are used."""


class BrokerRig(TableRig):
    """A master without slaves."""

    table = BROKER_FILES
    root = "base"
    made: ClassVar[type[ServiceCase]] = _Alone

    def start(self) -> None:
        self.parts: Any = self.made()
        self.parts.setUp()
        self.parts.disk = self.disk
        self.parts.make(flushDiskType="SYNC_FLUSH")
        self.ended = self.parts.reasons
        with self.heard():
            self._begin()
            self._pass(3)

    def _begin(self) -> None:
        self.parts.service.startService()

    def _pass(self, seconds: float) -> None:
        self.parts.clock.pump([0.1] * round(seconds * 10))

    def work(self) -> None:
        with self.heard():
            for _ in range(6):
                for _ in range(2):
                    self._send(self.body())
                self._pass(4)
            self._commit()
            self._pass(12)

    def _is_up(self) -> bool:
        return not self.ended and self.parts.service.broker is not None

    def _send(self, body: bytes) -> None:
        if not self._is_up():
            return
        number = len(self.sent)
        answers = self.parts.ask(send_of(
            body, queueId=number % 2, properties=f"KEYS\x01k{number}\x02TAGS\x01t\x02"))
        if [answer.code for answer in answers] == [0]:
            self.promised.append(body)

    def _commit(self) -> None:
        if self._is_up():
            metadata = self.parts.service.broker.metadata
            metadata.groups.find("g", 1)
            self.parts.ask(RemotingCommand(code=15, opaque=9, ext_fields={
                "consumerGroup": "g", "topic": "T1", "queueId": "0",
                "commitOffset": str(len(self.sent) // 4)}))

    def stop(self) -> None:
        with self.heard():
            self._end()
            self._pass(8)

    def _end(self) -> None:
        self.parts.service.stopService()

    def readable(self) -> list[bytes]:
        found: list[bytes] = []
        kept, self.disk = self.disk, FaultyDisk(self.disk.content, now_s=WALL_S)
        reasons = self.ended
        self.start()
        store = self.parts.service.broker.store
        for topic, queue_id in store.queues.keys():
            queue = store.queues.get(topic, queue_id)
            for unit in queue.read(queue.begin_index, queue.next_index - queue.begin_index):
                try:
                    message = decode_message(store.log.read(unit[1], unit[2]))
                except WireError:
                    continue  # readers do not get it
                if message.topic == "T1":
                    found.append(message.body)
        self.stop()
        self.disk, self.ended = kept, reasons
        return found

    def findings(self) -> list[str]:
        config = StoreConfig(store_path_root_dir="base", max_hash_slot_num=16, max_index_num=64)
        return [one.file for one in verify_store(self.disk, config).findings]


class RaftBrokerRig(BrokerRig):
    """A broker on a raft log whose group it is alone."""

    table = RAFT_BROKER_FILES
    inner = tuple(attrs.evolve(row, name=f"dledger-n0/{row.name}") for row in MEMBER_FILES)
    made = _AloneOnRaft

    def _begin(self) -> None:
        self.parts.raft.startService()

    def _end(self) -> None:
        self.parts.raft.stopService()


class NameServerRig(TableRig):
    """The KV configuration of a name server."""

    table = NAME_SERVER_FILES
    root = "/kv"

    def _make(self) -> KeyValues:
        return KeyValues(self.disk, f"{self.root}/kvConfig.json", inline, entries_max=1000, bytes_max=10**6)

    def start(self) -> None:
        self.values = self._make()
        with self.heard():
            try:
                self.values.load()
            except DirectoryError as error:
                self.ended.append(str(error))

    def work(self) -> None:
        with self.heard():
            for _ in range(0 if self.ended else 3):
                self._change(self.body())

    def _change(self, body: bytes) -> None:
        self.values.change("n", body.decode(), "v").addCallbacks(
            lambda _: self.promised.append(body), lambda _: None
        )

    def stop(self) -> None:
        if not self.ended:
            self.values.close()

    def readable(self) -> list[bytes]:
        again = self._make()
        again.load()
        return [name.encode() for name in again.table("n") or ()]

    def findings(self) -> list[str]:
        try:
            self._make().load()
        except DirectoryError:
            return [f"{self.root}/kvConfig.json"]
        return []


RIGS: dict[str, type[TableRig]] = {
    "member": MemberRig, "holed-member": HoledMemberRig, "broker": BrokerRig, "raft-broker": RaftBrokerRig,
    "name-server": NameServerRig,
}
