# -*- test-case-name: tests.processes.test_load -*-
"""
The time a member takes to open its ledger: after a clean stop, and after SIGKILL in the middle of writing.

    python -m benchmarks.open_ledger --quick
    python -m benchmarks.open_ledger --mebibytes 1024 --body-bytes 1024

Two spans are measured, each in a fresh process: C{store}: L{FileStore.open} alone; C{member}: from starting
C{twistd} to its first answer. The files are in the page cache, as they are after a process was killed.
"""

from __future__ import annotations

import gc
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click

from benchmarks.common import console, number, probe_machine, table, work_directory, write_json
from benchmarks.load import ROOT
from dledger.base.disk.disk import OsDisk
from dledger.storage.files.term_file import TermFile
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.processes.children import ending, free_ports, wait_until
from tests.processes.members import Member

#: Aims, in seconds, for opening a ledger of 1 GiB.
AIMS_S = {"clean stop": 3.0, "SIGKILL": 15.0}
_FLUSH_BYTES = 16 * 1024 * 1024
_BATCH = 256


def _config(directory: Path, port: int) -> DLedgerConfig:
    return DLedgerConfig(store_base_dir=str(directory), self_id="n0", peers=f"n0-127.0.0.1:{port}")


def flush_store(store: FileStore) -> None:
    """Bring everything that was appended to stable storage."""
    job = store.prepare_flush()
    if job is not None:
        job.run()
        store.finish_flush(job)


def build(directory: Path, size_bytes: int, body_bytes: int, *, clean: bool) -> None:
    """
    Fill a ledger as a leader does, flushing and committing on the way.

    @param clean: close it cleanly; else wait to be killed, with writes after the last flush.
    """
    config = _config(directory, 20911)
    store = FileStore.open(config, OsDisk())
    terms = TermFile(OsDisk(), config.self_path, member_ids=config.peers)
    terms.take_up(ledger_end_term=-1)
    terms.save(1, "n0")
    bodies = (b"x" * body_bytes,) * _BATCH
    flushed = 0
    while store.end_position < size_bytes - 2 * _BATCH * (body_bytes + 48):
        store.append_bodies(bodies, 1)
        if store.end_position - flushed > _FLUSH_BYTES:
            store.record_commit(store.ledger_end_index)
            flush_store(store)
            store.check_point()
            flushed = store.end_position
    if clean:
        store.record_commit(store.ledger_end_index)
        store.clean_close()
    sys.stdout.write(f"{store.ledger_end_index}\n")
    sys.stdout.flush()
    if not clean:
        signal.pause()


def _run(role: str, directory: Path, *words: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "benchmarks.open_ledger", "--role", role, "--directory", str(directory), *words
    ]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )


def make_ledger(directory: Path, size_bytes: int, body_bytes: int, *, clean: bool) -> int:
    """Build a ledger in a child process, which is killed unless C{clean}. @return: the last index."""
    words = ["--mebibytes", str(size_bytes // 2**20), "--body-bytes", str(body_bytes)]
    with _run("build" if clean else "build-and-wait", directory, *words) as child:
        assert child.stdout is not None
        try:
            line = child.stdout.readline()
            if not line:
                raise click.ClickException("building the ledger failed")
            if clean:
                child.wait(60)
        finally:
            child.kill()
    return int(line)


def open_store(directory: Path) -> dict[str, float]:
    """Open the ledger in this process. @return: seconds, and the last index found."""
    gc.disable()
    begin_s = time.perf_counter()
    store = FileStore.open(_config(directory, 20911), OsDisk())
    spent_s = time.perf_counter() - begin_s
    end_index = store.ledger_end_index
    store.abandon()
    return {"seconds": spent_s, "end_index": end_index}


def time_store(directory: Path) -> dict[str, float]:
    """L{open_store} in a fresh process."""
    with _run("open", directory) as child:
        assert child.stdout is not None
        answer = child.stdout.read()
        child.wait(120)
    result: dict[str, float] = json.loads(answer)
    return result


def time_member(directory: Path) -> dict[str, float]:
    """Measure from starting C{twistd} to its first answer."""
    member = Member("n0", {"n0": f"127.0.0.1:{free_ports(1)[0]}"}, directory)
    found: list[int] = []

    def answers() -> bool:
        said = member.metadata(seconds=1.0)
        if said is not None:
            found.append(said.end_index)
        return bool(found)

    with ending(member):
        begin_s = time.perf_counter()
        member.start()
        wait_until(answers, seconds=120, what="an answer of the member", every=0.01)
        return {"seconds": time.perf_counter() - begin_s, "end_index": found[0]}


def measure(directory: Path, size_bytes: int, body_bytes: int) -> list[dict[str, object]]:
    """Measure all four figures."""
    results: list[dict[str, object]] = []
    for after in AIMS_S:
        for what, timed in (("store", time_store), ("member", time_member)):
            place = directory / f"{what}-{after.replace(' ', '-')}"
            end_index = make_ledger(place, size_bytes, body_bytes, clean=after == "clean stop")
            seen = timed(place)
            if seen["end_index"] < end_index:
                raise click.ClickException(f"{after}, {what}: found {seen['end_index']}, wrote {end_index}")
            results.append({
                "after": after, "what": what, "bytes": size_bytes, "body_bytes": body_bytes,
                "entries": end_index + 1, "seconds": seen["seconds"],
            })
            shutil.rmtree(place)
    return results


@click.command()
@click.option("--quick", is_flag=True, help="a ledger of 128 MiB")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--mebibytes", default=1024, show_default=True)
@click.option("--body-bytes", default=1024, show_default=True)
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
@click.option("--role", type=click.Choice(["build", "build-and-wait", "open"]), hidden=True)
@click.option("--directory", type=click.Path(path_type=Path), hidden=True)
def main(
    quick: bool, json_path: str | None, mebibytes: int, body_bytes: int, parent: str | None, role: str | None,
    directory: Path | None,
) -> None:
    """Measure how long a ledger takes to open."""
    if role is not None and directory is not None:
        if role == "open":
            click.echo(json.dumps(open_store(directory)))
        else:
            build(directory, mebibytes * 2**20, body_bytes, clean=role == "build")
        return
    size_bytes = (128 if quick else mebibytes) * 2**20
    with work_directory(parent) as place:
        machine = probe_machine(place)
        results = measure(place, size_bytes, body_bytes)
    rows = [
        [str(row["after"]), str(row["what"]), f"{row['entries']:,}", number(float(str(row["seconds"])))]
        for row in results
    ]
    table(f"Opening a ledger of {size_bytes >> 20} MiB, {body_bytes}-byte bodies",
          ["after", "what", "entries", "seconds"], rows, left=2)
    for row in results:
        aim_s = AIMS_S[str(row["after"])]
        verdict = "reached" if float(str(row["seconds"])) < aim_s else "MISSED"
        console.print(f"aim for 1 GiB: {row['what']} after {row['after']} under {aim_s:g} s: {verdict}")
    console.print(machine.line())
    write_json(json_path, results, machine)


if __name__ == "__main__":
    main()
