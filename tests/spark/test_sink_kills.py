# -*- test-case-name: tests.spark.test_sink_kills -*-
"""
A stream into a group under SIGKILL: the process that appends dies in the middle of a batch, the driver dies
without it, the leader dies. In the end each row is in the log once, in its order.

Kills come at numbers of entries of the group; their places are those of a seed. DLEDGER_SINK_KILLS sets how
many, DLEDGER_SINK_SEED which, and with DLEDGER_SINK_VICTIM every kill is of that kind: workers, driver (a
worker that appends goes on), all (driver, JVM and workers), leader.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from pathlib import Path

from dledger.spark.sink.markers import MarkerKind, decode_marker
from tests.processes.children import Child, wait_until
from tests.processes.members import ROOT, Group
from tests.spark.ledgers import Ledger
from tests.spark.sessions import rows_of, spark
from tests.spark.test_exactly_once import session_of
from tests.spark.test_live import LiveCase

_SECONDS = 600.0
_KILLS = int(os.environ.get("DLEDGER_SINK_KILLS", "4"))
_SEED = int(os.environ.get("DLEDGER_SINK_SEED", "1"))
#: By the last digit of a kill's number; the workers die at the others.
_VICTIMS = {4: "leader", 7: "driver", 9: "all"}
_VICTIM = os.environ.get("DLEDGER_SINK_VICTIM", "")
#: Rows between two kills.
_ROWS = 180


class SinkChild(Child):
    """L{tests.spark.sink_query} with all its processes."""

    def __init__(self, source: str, bootstrap: str, directory: Path, number: int) -> None:
        command = [sys.executable, "-m", "tests.spark.sink_query", source, bootstrap,
                   str(directory / "checkpoint")]
        super().__init__("sink", command, log_path=directory / f"sink-{number}.log",
                         environment={"PYTHONPATH": str(ROOT)})

    def kill(self) -> None:
        """SIGKILL to driver, JVM and workers."""
        if self.is_running:
            _kill(*session_of(self.pid))
        super().kill()

    def kill_driver(self) -> None:
        """SIGKILL to driver and JVM; a worker that is appending goes on until it notices."""
        _kill(*(pid for pid, command in session_of(self.pid).items() if "pyspark.daemon" not in command))
        super().kill()

    def kill_workers(self) -> int:
        """SIGKILL to the processes that run Python for Spark, tasks and commits; how many."""
        daemons = {pid for pid, command in session_of(self.pid).items() if "pyspark.daemon" in command}
        # The daemon, whose workers are forks of it, lives on: without it Spark needs many seconds.
        return _kill(*(pid for pid in daemons if _parent(pid) in daemons))


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _kill(*pids: int) -> int:
    count = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count


def runs_of(bodies: list[bytes]) -> int:
    """How many attempts have appended rows, by their markers."""
    noted = map(decode_marker, bodies)
    return len({one.run for one in noted if one is not None and one.kind is MarkerKind.PIECE})


class KillTests(LiveCase):
    """Each row is in the log once after processes of the query, and the leader, were killed."""

    def test_kills(self) -> None:
        """Every kind of kill in turn; then the query runs to its end."""
        chance = random.Random(_SEED)
        count = _ROWS * (_KILLS + 2)
        ledger = Ledger(str(self.directory / "source"))
        self.addCleanup(ledger.close)
        bodies = [f"{number:06}".encode().ljust(chance.randrange(6, 60), b".") for number in range(count)]
        ledger.append(bodies)
        ledger.commit()
        group = Group(self.directory / "group")
        self.addCleanup(group.kill)
        group.start()
        group.leader()

        def end() -> int:
            said = [member.metadata(seconds=1.0) for member in group.members.values() if member.is_running]
            return max((answer.end_index for answer in said if answer is not None), default=-1)

        starts, dead = 1, ""
        query = SinkChild(ledger.path, group.peers_text, self.directory, starts)
        self.addCleanup(query.kill)
        query.start()
        for number in range(_KILLS):
            goal = end() + chance.randrange(_ROWS // 2, _ROWS)

            def reached(query: SinkChild = query, goal: int = goal) -> bool:
                if not query.is_running:
                    raise AssertionError(f"the query has ended\n{query.log_tail(60)}")
                return end() >= goal

            wait_until(reached, seconds=_SECONDS, what=f"entry {goal}", every=0.02)
            if dead:
                group.members[dead].start()
                dead = ""
            victim = _VICTIM or _VICTIMS.get(number % 10, "workers")
            if victim == "leader":
                dead = group.leader(among=tuple(
                    member_id for member_id, member in group.members.items() if member.is_running))
                group.members[dead].kill()
            elif victim in ("driver", "all"):
                (query.kill if victim == "all" else query.kill_driver)()
                starts += 1
                query = SinkChild(ledger.path, group.peers_text, self.directory, starts)
                self.addCleanup(query.kill)
                query.start()
            else:
                self.assertGreater(query.kill_workers(), 0)
        self.assertEqual(query.wait(seconds=_SECONDS), 0, query.log_tail(40))
        if dead:
            group.members[dead].start()
        group.wait_settled()
        read = spark().read.format("dledger").option("bootstrap", group.peers_text)
        found = [row[1] for row in rows_of(read.load().select("index", "body"), "index") if row[1]]
        self.assertEqual(found, bodies)
        marked = read.option("includeMarkers", "true").load()
        marked = marked.where("body like 'dledger-sink/1 %'").select("body")
        runs = runs_of([row[0] for row in marked.collect()])
        batches = len(bodies) // 150 + 1
        # A few kills may all come between two batches; of many, a third meets one.
        least = batches + _KILLS // 3 + 1 if _KILLS >= 20 else batches
        self.assertGreaterEqual(runs, least, "no kill has met a batch")
