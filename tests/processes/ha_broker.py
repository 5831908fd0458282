# -*- test-case-name: tests.processes.test_ha -*-
"""
One broker's commit log and replication as a process that takes commands, made to be killed::

    python -m tests.processes.ha_broker --role SYNC_MASTER --port 10912 --store DIR --puts FILE

It prints C{started}, then answers each line with one line: C{load} (put messages without a pause from now
on), C{quiet} (stop that; answers when all puts are answered), C{status} (JSON), C{stop}.

Each answered put is a line in the file of puts: its start and end, the CRC-32 of its bytes, its status. A
line is written before the next put, so a kill loses no answer that was seen.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from typing import Any
from zlib import crc32

import attrs
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.stdio import StandardIO
from twisted.internet.threads import deferToThread
from twisted.logger import globalLogBeginner, textFileLogObserver
from twisted.protocols.basic import LineOnlyReceiver

from dledger.base.disk.disk import OsDisk
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.replication.service import HAService
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.log.log_start import inspect_log
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.records import NewMessage
from dledger.rocketmq.store.records.store_config import StoreConfig
from protocols.wire.rocketmq.message import Host

FILE_SIZE = 65536
WINDOW = 8

_HOST = Host(address=bytes((127, 0, 0, 1)), port=10911)


class _LogEvents(BrokerEvents):
    """The master sends slaves what its log was appended."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def grown(self) -> None:
        master = self._broker._service.master
        if master is not None:
            master.appended()


class Broker(LineOnlyReceiver):
    """The process."""

    delimiter = b"\n"

    def __init__(self, reactor: Any, options: argparse.Namespace) -> None:
        self._reactor = reactor
        self._options = options
        self._rng = random.Random(options.seed)
        self._is_loaded = False
        self._pending = 0
        self._puts = open(options.puts, "ab", buffering=0) if options.puts else None
        disk = OsDisk()
        store = StoreConfig(store_path_root_dir=options.store, mapped_file_size_commit_log=FILE_SIZE)
        disk.makedirs(store.commit_log_path)
        is_slave = options.role == "SLAVE"
        seen = inspect_log(store, disk, checkpoint=None, is_aborted=True)
        self._log = CommitLog.open(
            store, disk, seen, is_slave=is_slave, run_in_thread=deferToThread, events=_LogEvents(self)
        )
        config = HAConfig(
            broker_role=options.role, flush_disk_type=options.flush, ha_full_history=True,
            ha_reconnect_max=500,
        )
        listen = None if is_slave else TCP4ServerEndpoint(reactor, options.port, interface="127.0.0.1")
        self._service = HAService(
            config, self._log, reactor, rng=self._rng, failed=self._failed, events=BrokerEvents(),
            listen=listen,
        )

    def connectionMade(self) -> None:
        """Standard input is open: start."""
        self._service.startService()
        if self._service.slave is not None:
            endpoint = TCP4ClientEndpoint(self._reactor, "127.0.0.1", self._options.port, timeout=3)
            self._service.follow(endpoint, "master")
        self.sendLine(b"started")

    def _failed(self, reason: str) -> None:
        sys.stderr.write(f"failed: {reason}\n")
        os._exit(1)

    def lineReceived(self, line: bytes) -> None:
        """Run a command."""
        if line == b"load":
            self._is_loaded = True
            for _ in range(WINDOW):
                self._put()
            self.sendLine(b"ok")
        elif line == b"quiet":
            self._is_loaded = False
            self._when_quiet()
        elif line == b"status":
            self.sendLine(json.dumps(attrs.asdict(self._service.status())).encode())
        elif line == b"stop":
            self._service.stopService().addCallback(lambda _: self._stop())

    def _stop(self) -> None:
        self._log.clean_close()
        self.sendLine(b"stopped")
        self._reactor.callLater(0.05, self._reactor.stop)

    def _when_quiet(self) -> None:
        if self._pending:
            self._reactor.callLater(0.02, self._when_quiet)
        else:
            self.sendLine(b"quiet")

    def _put(self) -> None:
        if not self._is_loaded:
            return
        now_ms = int(time.time() * 1000)
        message = NewMessage(
            topic="T", queue_id=0, body=self._rng.randbytes(self._rng.randrange(1, 3000)),
            properties_data=b"KEYS\x01k", flag=0, sys_flag=0, born_timestamp=now_ms, born_host=_HOST,
            store_host=_HOST,
        )
        stored = self._log.append([[message]], now_ms)
        self._pending += 1
        (start,), end = stored.offsets, stored.end
        crc = crc32(self._log.read(start, end - start))
        self._service.submit(end).addCallback(self._answered, start, end, crc)

    def _answered(self, status: PutStatus, start: int, end: int, crc: int) -> None:
        self._pending -= 1
        assert self._puts is not None
        self._puts.write(f"{start} {end} {crc} {status.name}\n".encode())
        self._reactor.callLater(0.002, self._put)


def main() -> None:
    """Run until C{stop}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", required=True)
    parser.add_argument("--flush", default="ASYNC_FLUSH")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--puts", default="")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    from twisted.internet import reactor

    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
    StandardIO(Broker(reactor, options))
    reactor.run()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
