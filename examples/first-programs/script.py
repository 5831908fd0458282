"""
Append each line of the standard input, say where it is, then print the whole log.

    seq 5 | python script.py
"""

import os
import sys

import dledger

with dledger.connect(os.environ["DLEDGER_PEERS"]) as log:
    try:
        summary = log.append_many(line.rstrip("\n").encode() for line in sys.stdin)
    except dledger.AppendFailed as error:
        sys.exit(f"{error.failed} lines are certainly not in the log: {error}")
    except dledger.UnknownOutcome as error:
        sys.exit(f"{error.unknown} lines may be in the log, now or later: {error}")
    for number in range(summary.count):
        print(f"line {number} is entry {summary.index_of(number)}")
    for entry in log.tail(0):
        print(entry.index, entry.body.decode())
