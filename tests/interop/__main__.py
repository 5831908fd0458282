# -*- test-case-name: tests.test_lanes -*-
"""
Everything against Java: the tests and seeded scenarios, several programs at a time; or only scenarios, as
many as asked for.

    python -m tests.interop
    python -m tests.interop --rounds 200 --seed 1
"""

from __future__ import annotations

import sys

from tests.interop import scenarios
from tests.lanes import Job, run_suite
from tests.runner.counts import SUMMARY, read_total

ROUNDS, SEED = 20, 1


def played() -> Job:
    """The scenarios, as one program."""
    return Job(
        name=f"{ROUNDS} scenarios", read=read_total(SUMMARY),
        command=(sys.executable, "-m", "tests.interop.scenarios", "--rounds", str(ROUNDS),
                 "--seed", str(SEED)),
    )


def main() -> int:
    """@return: exit status."""
    if len(sys.argv) > 1:
        scenarios.main()
    count = run_suite("interop", first=[played()])
    sys.stdout.write(f"{count.passed} tests and scenarios passed, {count.failed} failed\n")
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
