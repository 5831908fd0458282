# -*- test-case-name: tests.sim.test_runner -*-
"""C{python -m dledger.testing}: see L{dledger.testing.group.runner}."""

from __future__ import annotations

from dledger.testing.group.runner import main

if __name__ == "__main__":
    main(prog_name="python -m dledger.testing")
