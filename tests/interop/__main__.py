# -*- test-case-name: tests.interop.test_scenarios -*-
"""
Everything against Java: the tests, then seeded scenarios; or scenarios only, as many as asked for.

    python -m tests.interop
    python -m tests.interop --rounds 200 --seed 1
"""

from __future__ import annotations

import subprocess
import sys

from tests.interop import scenarios
from tests.processes.children import end_all
from tests.run_all import read_trial_strictly

ROUNDS, SEED = 20, 1


def main() -> int:
    """@return: exit status."""
    if len(sys.argv) > 1:
        scenarios.main()
    command = [sys.executable, "-m", "twisted.trial", "tests.interop"]
    trial = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert trial.stdout is not None
    kept = []
    for line in trial.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        kept.append(line)
    count = read_trial_strictly("".join(kept), trial.wait())
    try:
        passed, failed = scenarios.run(rounds=ROUNDS, seed=SEED)
    finally:
        end_all()
    sys.stdout.write(f"{passed + count.passed} tests and scenarios passed, {failed + count.failed} failed\n")
    return 1 if failed + count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
