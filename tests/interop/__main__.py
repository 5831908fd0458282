# -*- test-case-name: tests.interop.test_lanes -*-
"""
Everything against Java: the tests and seeded scenarios, L{LANES} programs at a time; or only scenarios, as
many as asked for.

    python -m tests.interop
    python -m tests.interop --rounds 200 --seed 1
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.interop import scenarios
from tests.interop.lanes import Job, Lanes
from tests.run_all import SUMMARY, read_total, read_trial_strictly

ROUNDS, SEED = 20, 1
#: More than the processors of a small machine: a program mostly waits for elections and time-outs.
LANES = 3
#: Members live for seconds: compiling their code for speed would cost a third of all processor time.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1"
#: The slowest modules come first, so that the lanes end at about the same time; the others follow.
LONGEST = (
    "test_raft_broker", "test_ha_ours_leads", "test_ha_ours_follows", "test_name_server", "test_rocketmq",
    "test_query_by_key", "test_java_client", "test_mixed_groups", "test_directories", "test_weaknesses",
    "test_versions",
    "test_ha_consumers", "test_weak_files", "test_operator_steps", "test_gallop",
)


def jobs(temporary: Path) -> list[Job]:
    """
    The scenarios, and one program for each module of tests.

    @param temporary: for the files of trial.
    """
    modules = sorted(
        (path.stem for path in Path(__file__).parent.glob("test_*.py")),
        key=lambda name: (LONGEST.index(name) if name in LONGEST else len(LONGEST), name),
    )
    found = [
        Job(
            name=name, read=read_trial_strictly,
            command=(sys.executable, "-m", "twisted.trial", f"--temp-directory={temporary / name}",
                     f"tests.interop.{name}"),
        )
        for name in modules
    ]
    played = Job(
        name=f"{ROUNDS} scenarios", read=read_total(SUMMARY),
        command=(sys.executable, "-m", "tests.interop.scenarios", "--rounds", str(ROUNDS),
                 "--seed", str(SEED)),
    )
    return [played, *found]


def main() -> int:
    """@return: exit status."""
    os.environ.setdefault("JAVA_TOOL_OPTIONS", JVM_OPTIONS)
    if len(sys.argv) > 1:
        scenarios.main()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        count = Lanes(jobs(Path(temporary)), sys.stdout).run(LANES)
    sys.stdout.write(f"{count.passed} tests and scenarios passed, {count.failed} failed\n")
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
