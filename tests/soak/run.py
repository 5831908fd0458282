# -*- test-case-name: tests.hostile.test_soak -*-
"""
Plays faults of many kinds on three real members while clients work, then judges all that the clients
know.

Usage: C{python -m tests.soak.run --minutes 30 --seed 1}, or C{make soak MINUTES=30}. It says a line for
each fault, and ends with a judgement; SIGINT ends the faults early, and the calls so far are judged. With
namespaces of its own (as root, or where everybody may make some) it cuts links and fills disks, with a C
compiler it fails reads, writes and fsyncs; else it leaves these faults out, and says so.

Where Go is installed and finds the module, porcupine judges the history, too: C{--porcupine}.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.processes.children import ChildError
from tests.soak.faults import ENDING, Fault, Faults
from tests.soak.judge import calls_of, judged, lines_of_workers, summary
from tests.soak.network import enter
from tests.soak.porcupine import build_porcupine, porcupine_says
from tests.soak.world import World


class Soak:
    """
    One run.

    @ivar wrong: what was found wrong.
    @ivar played: how often each fault was played.
    """

    def __init__(
        self, world: World, kinds: Mapping[str, Fault], chance: random.Random, *, seconds: float
    ) -> None:
        self._world = world
        self._kinds = kinds
        self._chance = chance
        self._seconds = seconds
        self.wrong: list[str] = []
        self.played: dict[str, int] = {}

    def run(self) -> None:
        """Start, play until the time is over, stop."""
        kinds, bag = self._kinds, list[str]()
        notify(f"{len(kinds)} kinds of faults: {', '.join(kinds)}")
        self._world.start()
        began = time.monotonic()
        try:
            while time.monotonic() < began + self._seconds:
                if not bag:
                    bag = list(kinds)
                    self._chance.shuffle(bag)
                name = bag.pop()
                self._play(name, kinds[name], time.monotonic() - began)
        except KeyboardInterrupt:
            notify("interrupted: no further faults")
            self._world.network.heal()
        except ChildError as error:
            self.wrong.append(f"after {[*self.played][-1:]}: {error}")
        if not self.wrong:
            self.wrong += self._world.stop()
        self.wrong += self._world.ended

    def _play(self, name: str, fault: Fault, at_s: float) -> None:
        self.played[name] = self.played.get(name, 0) + 1
        fault()
        self._world.network.heal()
        took_s = self._world.wait_in_step(name, may_end=name in ENDING)
        notify(f"{at_s:6.0f} s  {name}: in step after {took_s:.1f} s")


def notify(line: str) -> None:
    """A line of progress."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def judge(world: World, wrong: list[str], *, with_porcupine: bool) -> list[str]:
    """Judge the answers to the clients. @return: what is wrong, C{wrong} included."""
    lines = lines_of_workers(path for path in world.histories if path.exists())
    notify(f"{len(lines)} calls: {summary(lines)}")
    ledgers = [member.ledger_path for member in world.members.values()]
    found = wrong + judged(lines, ledgers) if not wrong or not any(
        member.is_running for member in world.members.values()) else wrong
    if with_porcupine:
        said = porcupine_says(calls_of(lines), ledgers[0])
        notify(f"porcupine: {said}")
        if said.startswith("Illegal"):
            found = [*found, f"porcupine: {said}"]
    return found


def main() -> int:
    """@return: the exit status: 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--clients", type=int, default=4, help="besides two producers and two readers")
    parser.add_argument("--hold", type=float, nargs=2, default=(0.5, 4.0), help="seconds of a fault")
    parser.add_argument("--only", default="", metavar="KIND,KIND", help="only these faults")
    parser.add_argument("--porcupine", action="store_true")
    options = parser.parse_args()
    if options.porcupine:
        build_porcupine()
    may_cut = enter(sys.argv[1:] + ([] if "--seed" in sys.argv else ["--seed", str(options.seed)]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    notify(f"seed {options.seed}, {options.minutes:g} minutes")
    if not may_cut:
        notify("no namespaces can be made here: no link is cut, no disk is full")
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="dledger-soak-", ignore_cleanup_errors=True) as name:
        world = World(Path(name), may_cut=may_cut, clients=options.clients, seed=options.seed)
        try:
            faults = Faults(world, chance, tuple(options.hold))
            soak = Soak(world, faults.kinds(options.only), chance, seconds=60 * options.minutes)
            soak.run()
            wrong = judge(world, soak.wrong, with_porcupine=options.porcupine)
            notify(f"{sum(soak.played.values())} faults of {len(soak.played)} kinds")
        finally:
            world.close()
    for one in wrong:
        notify(f"WRONG: {one}")
    notify("wrong" if wrong else "all is well")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
