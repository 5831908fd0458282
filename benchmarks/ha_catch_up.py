# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""
The speed at which an empty slave copies the log of its master, for each pairing of RocketMQ's brokers and
ours, and of a bare copy of the same bytes.

The master is stopped (by signal) while the slave starts, connects and reports; the time is measured from the
moment when the master continues until the slave says that it holds all bytes. So neither the start of a JVM
counts, nor the five seconds before the first report of a slave of RocketMQ's.

Rule: both masters have a store with the same bytes, in one file, have dispatched all of it, and rest.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from benchmarks.ha_brokers import (
    ASYNC_MASTER,
    JAVA,
    PATIENCE_S,
    SLAVE,
    TOPIC,
    Broker,
    make_broker,
    wait_for_rest,
)
from dledger.base.disk.disk import OsDisk
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.log.log_start import inspect_log
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.records import NewMessage
from dledger.rocketmq.store.records.store_config import StoreConfig
from protocols.wire.rocketmq.message import Host
from tests.interop.ha import BrokerError
from tests.processes.children import ChildError, wait_until
from tests.processes.members import ROOT

#: RocketMQ's default, and the length of the only file.
FILE_BYTES = 1 << 30

#: After these seconds a slave of each kind has certainly reported to its stopped master.
_REPORTED_S = {JAVA: 7.0}
_REPORTED_DEFAULT_S = 1.0

_BATCH = 256
_POLL_MIN_S, _POLL_MAX_S = 0.01, 0.1


class CopyError(Exception):
    """A copy could not be measured; the message says why."""


@attrs.frozen(kw_only=True)
class Copied:
    """
    One copy.

    @ivar seconds: from the first byte to the last.
    @ivar cpu_s: processor time of both sides meanwhile.
    @ivar slave_rss_bytes: of the slave afterwards; 0 if unknown.
    """

    bytes: int
    seconds: float
    cpu_s: float
    slave_rss_bytes: int = 0

    @property
    def mib_per_s(self) -> float:
        """The speed."""
        return self.bytes / self.seconds / 2**20


def write_store(directory: Path, *, log_bytes: int, body_bytes: int, reported: Callable[[int], None]) -> int:
    """
    Write a store whose commit log has at least C{log_bytes} in one file, messages of C{body_bytes}.

    @param reported: called with the bytes so far.
    @return: the end of the log.
    """
    disk = OsDisk()
    config = StoreConfig(store_path_root_dir=str(directory), mapped_file_size_commit_log=FILE_BYTES)
    disk.makedirs(config.commit_log_path)
    seen = inspect_log(config, disk, checkpoint=None, is_aborted=False)
    log = CommitLog.open(config, disk, seen, is_slave=False, run_in_thread=_no_thread, events=BrokerEvents())
    rng = random.Random(1)
    host = Host(address=bytes((127, 0, 0, 1)), port=10911)
    now_ms = int(time.time() * 1000)
    while log.end_offset < log_bytes:
        batches = [
            [NewMessage(
                topic=TOPIC, queue_id=number % 4, body=rng.randbytes(body_bytes),
                properties_data=b"UNIQ_KEY\x01%032X\x02TAGS\x01A\x02" % rng.getrandbits(128), flag=0,
                sys_flag=0, born_timestamp=now_ms, born_host=host, store_host=host,
            )]
            for number in range(_BATCH)
        ]
        log.append(batches, now_ms)
        reported(log.end_offset)
    assert log.end_offset < FILE_BYTES, "the log must have one file: a slave of RocketMQ's asks for the last"
    log.clean_close()
    return log.end_offset


def _no_thread(work: object) -> object:
    raise AssertionError("nothing is flushed in a thread here")


class Source:
    """
    A master with the whole log.

    @ivar kind: of its broker.
    """

    def __init__(self, directory: Path, kind: str, seed: Path, end_offset: int) -> None:
        """@param seed: a store, which is copied. @param end_offset: the end of its log."""
        self.kind = kind
        self.end_offset = end_offset
        self._directory = directory / f"catch-up-{kind}"
        self.master = make_broker(kind, f"{kind} source", self._directory / "master", ASYNC_MASTER)
        shutil.copytree(seed, self.master.store)
        self._slaves = 0

    def start(self) -> None:
        """Start the master."""
        self.master.start()

    def wait_ready(self) -> None:
        """Wait until it has dispatched everything and rests; stop it. @raise ChildError: it is late."""
        self.master.wait_started()

        def is_quiet() -> bool:
            try:
                return self.master.state("dispatchBehindBytes") == 0
            except BrokerError:
                return False

        wait_until(is_quiet, seconds=PATIENCE_S, what=f"{self.master.name} has dispatched", every=0.2)
        wait_for_rest((self.master,), self.master.name)
        if self.master.end_offset() != self.end_offset:
            raise ChildError(f"{self.master.name} ends at {self.master.end_offset()}, not {self.end_offset}")
        self.master.pause()

    def copy(self, kind: str) -> Copied:
        """
        Let a new slave copy everything. The master is stopped before and afterwards.

        @raise CopyError: the copy is not complete in time.
        """
        self._slaves += 1
        home = self._directory / f"{kind}-{self._slaves}"
        slave = make_broker(kind, f"{kind} slave", home, SLAVE, master=self.master.ha_address)
        try:
            slave.start()
            slave.wait_started()
            time.sleep(_REPORTED_S.get(kind, _REPORTED_DEFAULT_S))
            return self._measure(slave)
        except (ChildError, BrokerError) as error:
            raise CopyError(f"{self.kind} to {kind}: {error}") from error
        finally:
            self.master.pause()
            slave.kill()
            slave.wipe()

    def _measure(self, slave: Broker) -> Copied:
        master = self.master
        cpu_s = slave.cpu_seconds() + master.cpu_seconds()
        begin_s = time.monotonic()
        master.resume()
        offset = 0
        while offset < self.end_offset:
            if time.monotonic() > begin_s + PATIENCE_S:
                raise CopyError(f"{master.name} to {slave.name}: {offset} of {self.end_offset} bytes in "
                                f"{PATIENCE_S:g} s\n{slave.log_tail()}")
            time.sleep(poll_s(offset, self.end_offset, time.monotonic() - begin_s))
            offset = slave.end_offset()
        return Copied(
            bytes=offset, seconds=time.monotonic() - begin_s, slave_rss_bytes=slave.rss_bytes(),
            cpu_s=slave.cpu_seconds() + master.cpu_seconds() - cpu_s,
        )

    def kill(self) -> None:
        """End the master."""
        self.master.kill()


def poll_s(done: int, total: int, seconds: float) -> float:
    """
    Seconds to wait before the slave is asked again, since answers cost it time: half of the remaining time
    at its present speed.
    """
    left_s = seconds * (total - done) / done if done else _POLL_MAX_S
    return min(max(left_s / 2, _POLL_MIN_S), _POLL_MAX_S)


def bare_copy(source: Path, target: Path, size: int) -> Copied:
    """
    Copy C{size} bytes of the file with L{benchmarks.bare_copy}; the target is removed afterwards.

    @raise CopyError: the copy failed.
    """
    source, target = source.absolute(), target.absolute()
    command = [sys.executable, "-m", "benchmarks.bare_copy", *map(str, (source, target, size))]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise CopyError(f"the bare copy took more than {PATIENCE_S:g} s") from None
    finally:
        target.unlink(missing_ok=True)
    if done.returncode:
        raise CopyError(f"the bare copy failed: {done.stderr[-400:]}")
    return Copied(**json.loads(done.stdout))
