# -*- test-case-name: tests.processes.test_readers -*-
"""
A program that reads under a name, for tests that kill it: C{PEERS NAME OUTPUT SHARE LEASE_S}.

It writes C{token index body} to its output, then commits, for each entry, and C{lost} when its lease is lost;
then it opens the reader again.
"""

from __future__ import annotations

import sys

import dledger


def main(peers: str, name: str, output: str, share: str, lease_s: str) -> None:
    """Until it is killed."""
    with dledger.connect(peers, timeout=60.0) as log, open(output, "a", buffering=1, encoding="utf-8") as out:
        while True:
            with log.reader(name, share=int(share), lease_s=float(lease_s)) as reader:
                try:
                    for entry in reader:
                        if not entry.body:
                            continue
                        out.write(f"{reader.token} {entry.index} {entry.body.decode()}\n")
                        reader.commit()
                        out.write(f"done {entry.index}\n")
                except dledger.LeaseLost:
                    out.write("lost\n")
                except (dledger.NotLeader, dledger.Timeout):
                    continue


if __name__ == "__main__":
    main(*sys.argv[1:])
