# -*- test-case-name: tests.test_packaging -*-
"""
Writes constraints.txt from what is installed beside the interpreter that runs this.

    make constraints
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

from tests.runner.stages import ROOT

HEADER = "# The versions with which this release was tested: pip install -c constraints.txt dledger\n"
#: Ours, and what installs packages.
LEFT_OUT = frozenset(("dledger", "pip", "setuptools", "wheel"))


def text_of(installed: Iterable[Distribution]) -> str:
    """The text of constraints.txt: a line for each distribution, in the order of their names."""
    pins = {each.name: each.version for each in installed if each.name not in LEFT_OUT}
    return HEADER + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins, key=str.lower))


if __name__ == "__main__":
    (ROOT / "constraints.txt").write_text(text_of(distributions()), "utf-8")
    sys.stdout.write("constraints.txt is written; make test says whether these versions do\n")
