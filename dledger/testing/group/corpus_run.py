# -*- test-case-name: tests.sim.test_corpus_run -*-
"""
Plays the schedules of a corpus, and adds those that reach kinds of states that none before them had, if it
may: otherwise the schedules depend on the seed and the file alone, not on what was found on the way.

Half of the schedules are those of seeds, the others turn off from entries. L{SALTED} of them have the same
beginning, which is played once: at the turn the process forks for each of them. They run one after the other,
so a job keeps one processor busy.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path

import attrs

from dledger.testing.group.corpus import SALTS, Corpus, PlayedLine
from dledger.testing.group.focuses import FOCUSES, focus_name_of
from dledger.testing.group.group_states import StateWatch
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.schedule import EVERYTHING, ScheduleOutcome, run_schedule
from dledger.testing.world.running import Effort

#: Schedules that turn off at one place.
SALTED = 4
#: Schedules of seeds in a round. What a round found counts from the next one on, so the number of processes
#: changes nothing.
ROUND = 8


@attrs.frozen(kw_only=True)
class PlayedOutcome(ScheduleOutcome):
    """
    The end of a schedule that was watched.

    @ivar reached: each kind of state that it reached, and when it was first, microseconds.
    """

    line: PlayedLine
    reached: dict[int, int]


class _Parted(BaseException):
    """The schedule was played by others to its end."""


def _turn(cluster: SimCluster, at_us: int, salt: int) -> None:
    cluster.turn(f"{at_us}:{salt}")


class _Parting:
    """
    At its place, the process forks for each salt, and each child plays on.

    @ivar line: what this process plays. @ivar at_us: the place. @ivar outcomes: of the children.
    """

    def __init__(self, line: PlayedLine, at_us: int, salts: tuple[int, ...]) -> None:
        self.line = line
        self.outcomes: list[PlayedOutcome] = []
        self.at_us = at_us
        self._salts = salts
        self._pipe = -1

    def part(self, cluster: SimCluster) -> None:
        """Fork. @raise _Parted: in the parent, when all children have ended."""
        gc.freeze()  # what both share is not looked at, so it stays shared
        for salt in self._salts:
            line = self.line.turned(self.at_us, salt)
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                self.line = line
                self._pipe = writing
                _turn(cluster, self.at_us, salt)
                return
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                sent = pipe.read()
            os.waitpid(child, 0)
            self.outcomes.append(pickle.loads(sent) if sent else _broken(line))
        gc.unfreeze()
        raise _Parted

    @property
    def is_child(self) -> bool:
        """Whether this process was forked for a salt."""
        return self._pipe >= 0

    def leave(self, outcome: PlayedOutcome | None) -> None:
        """End this child. @param outcome: goes to the parent; None: it cannot play."""
        try:
            if outcome is not None:
                with os.fdopen(self._pipe, "wb") as pipe:
                    pickle.dump(outcome, pipe)
        finally:
            os._exit(0)


def _broken(line: PlayedLine) -> PlayedOutcome:
    return PlayedOutcome(
        seed=line.seed, failure="the process that played it has ended", lines=(), digest=0, steps=0,
        acknowledged=0, committed=0, elections=0, restarts=0, line=line, reached={},
    )


def play_line(line: PlayedLine, *, seconds: float, wants_all_lines: bool = False) -> PlayedOutcome:
    """Play one schedule."""
    return _play(line, None, seconds=seconds, wants_all_lines=wants_all_lines)


def _play(
    line: PlayedLine, parting: _Parting | None, *, seconds: float, wants_all_lines: bool = False
) -> PlayedOutcome:
    watches: list[StateWatch] = []

    def prepare(cluster: SimCluster) -> None:
        cluster.trace.watch = watch = StateWatch(cluster)
        watches.append(watch)
        for at_us, salt in line.turns:
            cluster.clock.at(at_us, _turn, cluster, at_us, salt)
        if parting is not None:
            cluster.clock.at(parting.at_us, parting.part, cluster)

    focus = FOCUSES[line.focus_name][1] if line.focus_name else EVERYTHING
    found = run_schedule(
        line.seed, seconds=seconds, wants_all_lines=wants_all_lines, focus=focus, prepare=prepare
    )
    played = line if parting is None else parting.line
    reported = {field.name: getattr(found, field.name) for field in attrs.fields(ScheduleOutcome)}
    return PlayedOutcome(**reported, line=played, reached=watches[0].firsts)


@attrs.frozen
class CorpusTask:
    """
    Schedules with the same beginning.

    @ivar line: up to the turn, all of it without salts. @ivar at_us: of the turn. @ivar salts: of it.
    """

    line: PlayedLine
    at_us: int = 0
    salts: tuple[int, ...] = ()

    def play(self, seconds: float) -> list[PlayedOutcome]:
        """All of them."""
        if not self.salts:
            return [play_line(self.line, seconds=seconds)]
        before = attrs.evolve(
            self.line, turns=tuple(turn for turn in self.line.turns if turn[0] < self.at_us)
        )
        parting = _Parting(before, self.at_us, self.salts)
        outcome = None
        try:
            outcome = _play(before, parting, seconds=seconds)
        except _Parted:
            return parting.outcomes
        finally:
            if parting.is_child:
                parting.leave(outcome)
        return [outcome]  # (it failed before the turn)


class CorpusRun:
    """
    Plays schedules from a corpus; if it may, adds to it and writes its file anew after each round.

    @ivar corpus: as far as it has grown.
    """

    def __init__(self, path: Path, *, seconds: float, seed: int, saves: bool = True) -> None:
        """
        @param seed: of the first schedule of a seed, and of what is drawn from the corpus.
        @param saves: the corpus may grow, and its file is written.
        @raise CorpusError: the file is no corpus.
        """
        self.corpus = Corpus.load(path, seconds)
        self._path = path
        self._saves = saves
        self._seed = self._next_seed = seed

    def _seeds(self, count: int) -> list[CorpusTask]:
        first, self._next_seed = self._next_seed, self._next_seed + count
        return [CorpusTask(PlayedLine(seed, focus_name_of(seed))) for seed in range(first, first + count)]

    def tasks(self) -> list[CorpusTask]:
        """Those of the next round: as many schedules of seeds as of the corpus, if it has entries."""
        rng = random.Random(f"{self._seed} {self._next_seed} corpus")
        tasks = self._seeds(ROUND)
        for _ in range(ROUND // SALTED):
            drawn = self.corpus.drawn(rng)
            if drawn is None:
                tasks += self._seeds(SALTED)
            else:
                salts = tuple(sorted(rng.sample(range(SALTS), SALTED)))
                tasks.append(CorpusTask(drawn[0], drawn[1], salts))
        return tasks

    def outcomes(
        self, schedules: int, play: Callable[[list[CorpusTask]], Iterator[list[PlayedOutcome]]]
    ) -> Generator[PlayedOutcome]:
        """
        Play schedules. Those that pass may be added.

        @param schedules: no round begins after this number.
        @param play: plays tasks, and yields the outcomes of each, in the order of the tasks.
        """
        count = 0
        while count < schedules:
            found: list[PlayedOutcome] = []
            try:
                for outcomes in play(self.tasks()):
                    found += outcomes
                    yield from outcomes
            finally:  # the caller may have seen enough
                if self._saves:
                    self._keep(found)
            count += len(found)

    def _keep(self, found: Iterable[PlayedOutcome]) -> None:
        for outcome in found:
            if not outcome.failure:
                self.corpus.add(outcome.line, outcome.reached)
        self.corpus.save(self._path)

    @property
    def sentence(self) -> str:
        """The size of the corpus."""
        return f"{self.corpus.kinds} kinds of states, by {len(self.corpus.entries)} schedules"

    def outcomes_of_jobs(self, schedules: int, jobs: int, effort: Effort) -> Generator[PlayedOutcome]:
        """The same, in several processes. @param jobs: 1: in this one."""
        play = partial(CorpusTask.play, seconds=self.corpus.seconds)
        yield from self.outcomes(schedules, partial(effort.played, play, jobs=jobs))
