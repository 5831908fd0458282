# -*- test-case-name: tests.processes.test_golden -*-
"""
Makes the directories of a release, each packed into one file: C{python -m tests.golden.make 0.2}.

They are made once, with the programs of the release, and never again: tests.processes.test_golden opens them
with every later version. Here is what each has; C{expected.json} has what is found in it.

    member      a log with numbered appends, a named reader, times, a state machine with a snapshot
    archive, backup    of that member
    broker      a master with messages in two queues and the offset of a consumer
    raft-broker    the same on a raft log
    checkpoint, export    of a stream of Spark in its second batch, and of dledger export: both of the member
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dledger
from tests.processes.brokers import FILE_SIZE, Broker, Remoting
from tests.processes.children import free_ports, free_triple, wait_until
from tests.processes.members import ROOT, Member, ended_well
from tests.processes.raft_brokers import RaftTrio

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HERE = Path(__file__).resolve().parent
MEMBER_OPTIONS: dict[str, object] = {
    "mapped_file_size_for_entry_data": 1 << 16, "mapped_file_size_for_entry_index": 32 * 2048,
    "entry_times_ms": 1, "machine_snapshot_entries": 100, "bootstrap": True,
}
CLI = "from dledger.cli.entry import main; main()"
MACHINE = ("--machine", "tests.soak.machine:Digests")
ENTRIES, NUMBERED, READ, MESSAGES = 300, 20, 10, 30
#: Requests of RocketMQ.
QUERY_OFFSET, UPDATE_OFFSET, UPDATE_GROUP = 14, 15, 200
CONSUMED = 7
TOPIC, CONSUMERS = "golden", "golden-readers"


def made_member(directory: Path) -> dict[str, Any]:
    """A member, its archive and its backup."""
    (port,) = free_ports(1)
    member = Member("n0", {"n0": f"127.0.0.1:{port}"}, directory / "member", options=MEMBER_OPTIONS,
                    extra=MACHINE)
    member.directory.mkdir()
    member.log_path = directory / "member.log"
    member.start()
    with dledger.connect(f"n0-127.0.0.1:{port}", timeout=60.0) as log:
        log.append(b"first")
        for number in range(NUMBERED):
            log.append(b"numbered %d" % number, producer="golden", sequence=number)
        log.append_many([b"%d:" % number + b"x" * 400 for number in range(ENTRIES)])
        with log.reader("golden", follow=False) as reader:
            for _, entry in zip(range(READ), reader, strict=False):
                reader.commit(entry.index)
        state = log.query(b"").decode()
        entries = {entry.index: entry.body for entry in log.tail(0, follow=False)}
    snapshots = member.ledger_path / "machine"
    wait_until(lambda: any(snapshots.glob("snapshot-*")), seconds=60, what="a snapshot")
    assert ended_well(member.stop(seconds=60))
    for command in ("archive", "backup"):
        words = [command, str(member.ledger_path), str(directory / command)]
        subprocess.run([sys.executable, "-c", CLI, *words], check=True, cwd=ROOT, capture_output=True)
    return {"indexes": [*entries], "digest": digest_of(entries), "state": state,
            "last_sequence": NUMBERED - 1}


def digest_of(entries: Mapping[int, bytes]) -> str:
    """Of bodies by index, in order."""
    found = sha256()
    for index, body in entries.items():
        found.update(b"%d:%d:" % (index, len(body)) + body)
    return found.hexdigest()


def _sent(connection: Remoting) -> None:
    for number in range(MESSAGES):
        connection.put(TOPIC, number % 2, b"message %d" % number)
        assert connection.next().code == 0
    queue = {"consumerGroup": CONSUMERS, "topic": TOPIC, "queueId": "0"}
    connection.ask(UPDATE_GROUP, {}, json.dumps({"groupName": CONSUMERS}).encode())
    answer = connection.ask(UPDATE_OFFSET, {**queue, "commitOffset": str(CONSUMED)})
    assert answer.code == 0, answer
    answer = connection.ask(QUERY_OFFSET, queue)
    assert answer.ext_fields.get("offset") == str(CONSUMED), answer
    connection.close()


def made_brokers(directory: Path) -> dict[str, Any]:
    """A master, and a broker on a raft log."""
    broker = Broker("broker", directory, role="ASYNC_MASTER", port=free_triple())
    broker.start()
    broker.wait_started()
    _sent(Remoting(broker.address))
    broker.end()
    trio = RaftTrio(directory, size=1)
    trio.start()
    _sent(trio.brokers["n0"].connect())
    assert all(map(ended_well, trio.stop().values()))
    trio.kill()
    shutil.copytree(broker.store, directory / "packed-broker")
    shutil.copytree(trio.brokers["n0"].store, directory / "packed-raft-broker")
    messages = [[number % 2, f"message {number}"] for number in range(MESSAGES)]
    return {"messages": messages, "consumed": CONSUMED}


def made_reads(directory: Path, member: Path) -> dict[str, Any]:
    """Of a member's directory: a checkpoint of a stream that failed in its second batch, and an export."""
    from pyspark.errors import StreamingQueryException

    import dledger.spark

    spark = dledger.spark.session("dledger golden", master="local[1]")
    rows: list[int] = []

    def take(frame: DataFrame, number: int) -> None:
        if number:
            raise RuntimeError("a later version goes on here")
        rows.extend(row[0] for row in frame.select("index").collect())

    stream = spark.readStream.format("dledger").option("startingOffsets", "earliest")
    query = (
        stream.option("maxOffsetsPerTrigger", str(READ * 10)).load(str(member)).writeStream.foreachBatch(take)
        .option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    )
    with suppress(StreamingQueryException):
        query.awaitTermination()
    spark.stop()
    subprocess.run([sys.executable, "-c", CLI, "export", str(member), str(directory / "export")], check=True,
                   cwd=ROOT, capture_output=True)
    return {"read": sorted(rows)}


def main() -> None:
    """Make, and pack."""
    (release,) = sys.argv[1:]
    target = HERE / release
    target.mkdir()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        expected = {"member": made_member(directory), "broker": made_brokers(directory),
                    "reads": made_reads(directory, directory / "member" / "dledger-n0"),
                    "file_size": FILE_SIZE, "made_by": dledger.__version__}
        for kind, path in (
            ("member", "member"), ("archive", "archive"), ("backup", "backup"), ("broker", "packed-broker"),
            ("raft-broker", "packed-raft-broker"), ("checkpoint", "checkpoint"), ("export", "export"),
        ):
            # Of files that are reserved, and mostly empty, the holes are packed as such.
            subprocess.run(["tar", "--sparse", "-cJf", str(target / f"{kind}.tar.xz"), "-C", str(directory),
                            f"--transform=s,^{path},{kind},", path], check=True)
    (target / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
