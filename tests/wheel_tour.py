# -*- test-case-name: tests.test_packaging -*-
"""
An installed package without its checkout: an append to a group, an export, and a message to a broker.

Run it as a file with the interpreter that has the package, in an empty directory: C{python -I wheel_tour.py}.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import dledger

ROOT = Path(__file__).resolve().parents[1]
COMMAND = str(Path(sys.executable).with_name("dledger"))


def group(*words: str) -> tuple[subprocess.Popen[str], dict[str, object]]:
    """C{dledger local}, and its line."""
    process = subprocess.Popen([COMMAND, "local", "--json", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    """Ctrl-C."""
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 0, process.returncode


def main() -> None:
    """@raise AssertionError: something is not as in a checkout."""
    assert Path(dledger.__file__).parents[1] != ROOT, f"{dledger.__file__} is of the checkout"
    process, said = group("--dir", "members")
    with dledger.connect(str(said["peers"]), timeout=60.0) as log:
        log.append_many([b"row %d" % number for number in range(1000)])
        log.append(b"end")
        leader = log.metadata().leader_id  # (A follower may be one entry late.)
    (member,) = [one["directory"] for one in said["members"] if one["id"] == leader]  # type: ignore
    end(process)
    subprocess.run([COMMAND, "export", str(member), "out"], check=True, timeout=300)
    import pyarrow.parquet as parquet

    rows = parquet.read_table("out").num_rows
    assert rows >= 1001, rows
    from dledger.rocketmq.client.blocking import Broker

    process, said = group("--dir", "brokers", "--rocketmq", "--members", "1")
    with Broker(str(said["members"][0]["broker"])) as broker:  # type: ignore[index]
        assert broker.put("orders", b"a", queue_id=0).status == "PUT_OK"
    end(process)
    sys.stdout.write(f"{dledger.__version__}: {rows} rows, one message, Python {sys.version.split()[0]}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
