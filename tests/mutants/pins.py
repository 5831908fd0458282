# -*- test-case-name: tests.sim.test_mutants -*-
"""
The pins: for each mutant that schedules hunt, the one seed, or the one test, that notices it for certain.

C{pins.txt} has a line for each: its name, its pin, and the seconds of the processor that this took when it
was found. Rule: a schedule depends on its seed and the code alone, so a mutant that survives its pin has
failed. A change of the product, or of the rig, may make another run of the seed, which notices nothing;
C{python -m tests.mutants --renew} finds another pin then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

PINS = Path(__file__).with_name("pins.txt")

#: In the place of a pin: none is known.
NONE = "-"

_HEAD = """\
# What notices each mutant for certain: the seed of one schedule, or a test; "-": nothing is known.
# Seconds are those of the processor. Written by: python -m tests.mutants --renew
"""


@attrs.frozen
class Pin:
    """
    What notices a mutant.

    @ivar what: the seed of a schedule, in digits, or the name of a test.
    @ivar seconds: of the processor, with all imports, when it was found.
    """

    what: str
    seconds: float


def read_pins(path: Path = PINS) -> dict[str, Pin | None]:
    """The pins by the names of their mutants, as far as they were looked for; None: none was found."""
    found: dict[str, Pin | None] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if line and not line.startswith("#"):
            name, what, *seconds = line.split()
            found[name] = None if what == NONE else Pin(what, float(seconds[0]))
    return found


def write_pins(pins: Mapping[str, Pin | None], path: Path = PINS) -> None:
    """Replace the file by these, in the order of their names."""
    lines = [
        f"{name} {NONE}\n" if pin is None else f"{name} {pin.what} {pin.seconds:.1f}\n"
        for name, pin in sorted(pins.items())
    ]
    new = path.with_suffix(".new")
    new.write_text(_HEAD + "".join(lines), encoding="utf-8")
    new.replace(path)
