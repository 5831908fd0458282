# -*- test-case-name: tests.sim.test_schedule -*-
"""
One seed, one schedule: a group, its clients, its faults, and the verdict.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping

import attrs

from dledger.testing.group.clients import Load, SimClient
from dledger.testing.group.injection.faults import Nemesis
from dledger.testing.group.injection.machine_faults import MachineTroubles
from dledger.testing.group.liveness import LivenessWatch
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.sim_readers import ReaderLoad, SimReaders
from dledger.values.option_values import with_values

#: Simulated seconds with faults.
SECONDS = 40.0
#: Share of the schedules without a focus whose members run state machines.
MACHINES = 0.3
#: Share of the schedules without a focus whose log is short.
SHORT = 0.3
#: Share of the schedules whose leaders note times.
TIMED = 0.15
#: Share of the schedules without a focus that have named readers.
READERS = 0.3


@attrs.frozen(kw_only=True)
class ScheduleOutcome:
    """
    The end of a schedule.

    @ivar failure: what is wrong, in a sentence or a traceback; empty if it passed.
    @ivar lines: the last steps, if it failed; all of them if that was asked for.
    @ivar digest: of every step; the same for the same seed and code.
    @ivar acknowledged, committed, elections, restarts: totals of the run.
    """

    seed: int
    failure: str
    lines: tuple[str, ...]
    digest: int
    steps: int
    acknowledged: int
    committed: int
    elections: int
    restarts: int


@attrs.frozen(kw_only=True)
class Focus:
    """
    Schedules that test one aspect.

    @ivar settings: options that the seed does not choose.
    @ivar faults: names of the only faults that happen; empty for the seed's own mix.
    @ivar load: fields of L{Load} that the seed does not choose.
    @ivar pace_s: mean seconds between faults; 0 for the seed's own.
    @ivar group: fields of L{GroupOptions} that the seed does not choose.
    @ivar readers: fields of L{ReaderLoad} that the seed does not choose; None: no named readers.
    """

    settings: Mapping[str, object] = attrs.Factory(dict)
    faults: tuple[str, ...] = ()
    load: Mapping[str, object] = attrs.Factory(dict)
    pace_s: float = 0.0
    group: Mapping[str, object] = attrs.Factory(dict)
    readers: Mapping[str, object] | None = None

    def narrow(self, options: GroupOptions, load: Load) -> tuple[GroupOptions, Load]:
        """The seed's options, overridden by those of this focus."""
        settings = {**options.settings, **self.settings}
        if self.faults:
            # Appends with conditions are refused more often than taken.
            load = attrs.evolve(load, conditions=0.0, exact=0.0, single=0.0)
        narrowed = with_values(options, {"settings": settings, **self.group})
        # (The seed's group may have been larger, and the focus may forbid one to lead.)
        ids = {f"n{number}" for number in range(narrowed.members)}
        ids -= {one for one, its in narrowed.member_settings.items() if its.get("never_lead")}
        preferred = settings.get("preferred_leader_ids", ())
        if not ids.issuperset(preferred):  # type: ignore[arg-type]
            del settings["preferred_leader_ids"]
        return narrowed, with_values(load, self.load)


EVERYTHING = Focus()


def member_options(seed: int, members: int | None = None) -> tuple[GroupOptions, Load]:
    """The options that the seed gives the group and its load."""
    rng = random.Random(f"{seed} options")
    count = rng.choice((3, 3, 3, 3, 3, 5, 5, 7)) if members is None else members
    sync = rng.random() < 0.6
    settings: dict[str, object] = {
        "flush_disk_type": "sync" if sync else "async",
        "mapped_file_size_for_entry_data": rng.choice((1024, 2048, 4096, 16384)),
        "mapped_file_size_for_entry_index": 32 * rng.choice((4, 16, 64)),
        "term_start_entry": rng.random() < 0.8,
        "pre_vote": rng.random() < 0.7,
        "enable_batch_push": rng.random() < 0.8,
        "max_batch_push_count": rng.choice((2, 8, 1000)),
        "max_inflight_pushes": rng.choice((1, 4, 64)),
        "max_queued_pushes": 64,
        "check_point_interval": rng.choice((1000, 3000, 10_000)),
    }
    if (not sync and rng.random() < 0.1) or rng.random() < 0.15:
        settings["retention_bytes"] = 4 * int(settings["mapped_file_size_for_entry_data"])  # type: ignore
    elif rng.random() < 0.15:
        settings["enable_disk_force_clean"] = True
    elif rng.random() < 0.1:
        settings["file_reserved_hours"] = 24
    if rng.random() < 0.15:
        settings["preferred_leader_ids"] = (f"n{rng.randrange(count)}",)
    single: dict[str, dict[str, object]] = {}
    if rng.random() < 0.2:
        for number in rng.sample(range(count), 1 + int(rng.random() * (count // 2))):
            single[f"n{number}"] = {"never_lead": True}
    if not set(single).isdisjoint(settings.get("preferred_leader_ids", ())):  # type: ignore[arg-type]
        del settings["preferred_leader_ids"]
    chunks = random.Random(f"{seed} chunks")
    settings["push_chunk_bytes"] = chunks.choice((0, 200, 200, 500, 500, 1500))
    settings["push_chunk_behind_bytes"] = chunks.choice((0, 0, 400))
    scrub = random.Random(f"{seed} scrub")
    settings["scrub_bytes_per_s"] = scrub.choice((0, 20_000, 200_000))
    settings["scrub_pause_ms"] = scrub.choice((50, 500, 5000))
    times = random.Random(f"{seed} times")
    if times.random() < TIMED:
        settings["entry_times_ms"] = times.choice((20, 200, 2000))
    options = GroupOptions(
        members=count, settings=settings, member_settings=single, is_native=rng.random() < 0.7,
        hides_wire_version=rng.random() < 0.1, flush_us=rng.choice((100, 500, 5000, 20_000)),
        turn_us=rng.choice((0, 0, 2000, 20_000)), delay_us=rng.choice((100, 300, 2000, 10_000)),
        spread_us=rng.choice((100, 700, 5000, 30_000)),
    )
    options = attrs.evolve(options, clients_wire=rng.choice(("auto", "binary", "binary", "remoting")))
    conditions = random.Random(f"{seed} conditions").choice((0.0, 0.0, 0.0, 0.5))
    exact = random.Random(f"{seed} exact").choice((0.0, 0.0, 0.0, 0.7))
    lone = random.Random(f"{seed} lone").choice((0.0, 0.5))
    habits = random.Random(f"{seed} habits")
    return options, attrs.evolve(
        _load_of(rng, settings), conditions=conditions, exact=exact, single=lone,
        numbered=habits.choice((0.0, 0.15)), together=habits.choice((0.0, 0.15)),
    )


def with_machines(seed: int, options: GroupOptions, load: Load) -> tuple[GroupOptions, Load]:
    """
    The same, and in a part of the schedules state machines, from a stream of their own: the other schedules
    stay as they were. Members that look like Java's have none, because nobody would send them snapshots.
    """
    rng = random.Random(f"{seed} machines")
    if rng.random() >= MACHINES or options.hides_wire_version:
        return options, load
    settings = {
        "machine_snapshot_entries": rng.choice((7, 20, 20, 60)),
        "machine_keep_entries": rng.choice((0, 0, 1, 20)),
    }
    load = attrs.evolve(load, submits=load.appends, queries=load.gets, poison=rng.choice((0.0, 0.01, 0.03)))
    return attrs.evolve(options, settings={**options.settings, **settings}, has_machines=True), load


def with_short_log(seed: int, options: GroupOptions, load: Load) -> tuple[GroupOptions, Load]:
    """
    The same, and in a part of the schedules a log of few entries, from a stream of their own: members that
    were away come back too late for it. Most of these groups run state machines, or have producers.
    """
    rng = random.Random(f"{seed} short log")
    if rng.random() >= SHORT or options.hides_wire_version:
        return options, load
    size = rng.choice((1024, 1024, 2048))
    settings = {
        **options.settings, "mapped_file_size_for_entry_data": size,
        "retention_bytes": rng.choice((2, 3)) * size, "enable_disk_force_clean": False,
        "file_reserved_hours": 0, "check_point_interval": 1000,
    }
    if rng.random() < 0.7:
        settings["machine_snapshot_entries"] = rng.choice((4, 7, 12))
        settings["machine_keep_entries"] = rng.choice((0, 1, 1, 5))
        options = attrs.evolve(options, has_machines=True)
        poison = rng.choice((0.0, 0.0, 0.02))
        load = attrs.evolve(load, submits=load.appends, queries=load.gets, poison=poison)
    load = attrs.evolve(
        load, body_bytes_max=min(load.body_bytes_max, 300), exact=rng.choice((load.exact, 0.7)),
        conditions=0.0,
    )
    return attrs.evolve(options, settings=settings), load


def reader_load(seed: int, options: GroupOptions, focus: Focus = EVERYTHING) -> ReaderLoad | None:
    """
    The named readers of a schedule, from a stream of their own; None: it has none. Leaders that look like
    Java's keep none.
    """
    rng = random.Random(f"{seed} readers")
    is_drawn = rng.random() < READERS
    if options.hides_wire_version or (not is_drawn if focus is EVERYTHING else focus.readers is None):
        return None
    load = ReaderLoad(
        names=rng.choice((1, 1, 2)), processes=rng.choice((1, 2, 2, 3, 4)), share=rng.choice((0, 0, 3, 20)),
        lease_s=rng.choice((0.5, 1.0, 3.0)), orders=rng.choice((0.0, 0.05, 0.3)),
    )
    return with_values(load, focus.readers or {})


def _load_of(rng: random.Random, settings: dict[str, object]) -> Load:
    fits = int(settings["mapped_file_size_for_entry_data"]) - 60  # type: ignore[call-overload]
    reading: dict[str, object] = {"appends": 0.3, "gets": 1.0, "wander": 0.3} if rng.random() < 1 / 3 else {}
    load = Load(
        clients=rng.choice((1, 2, 3)),
        think_us=rng.choice((200_000, 400_000, 800_000)),
        appends=rng.choice((0.3, 0.6, 0.9)),
        bodies_max=rng.choice((1, 1, 3, 12)),
        body_bytes_max=min(rng.choice((20, 100, 300, 900)), fits),
    )
    return with_values(load, reading)


def run_schedule(
    seed: int, *, seconds: float = SECONDS, members: int | None = None, wants_all_lines: bool = False,
    focus: Focus = EVERYTHING, prepare: Callable[[SimCluster], None] | None = None,
) -> ScheduleOutcome:
    """
    Run one seed to its verdict. Never raises for a failed check.

    @param prepare: gets the group before anything happens.
    """
    options, load = focus.narrow(*member_options(seed, members))
    if focus is EVERYTHING:
        options, load = with_short_log(seed, *with_machines(seed, options, load))
    cluster = SimCluster(options, seed)
    if prepare is not None:
        prepare(cluster)
    if wants_all_lines:
        cluster.trace.echo = []
    clients = [SimClient(cluster, f"c{number}", load, cluster.random(f"client {number}"))
               for number in range(load.clients)]
    readers = SimReaders.of(cluster, reader_load(seed, options, focus))
    nemesis = Nemesis(cluster, cluster.random("faults"), seconds=seconds, only=focus.faults,
                      pace_s=focus.pace_s)
    rules = cluster.world.machines
    troubles = None if rules is None else MachineTroubles(
        cluster, rules, cluster.random("machines"), seconds=seconds
    )
    watch = LivenessWatch(cluster)
    failure = ""
    try:
        with cluster.bugs.listening():
            cluster.start()
            nemesis.start()
            if troubles is not None:
                troubles.start()
            watch.start()
            for client in clients:
                client.start()
            readers.start()
            cluster.run(seconds)
            for client in clients:
                client.is_stopped = True
            readers.stop()
            cluster.end_faults()
            if troubles is not None:
                troubles.end()
            cluster.settle()
            if readers.drain():
                cluster.settle()
            cluster.judge()
            if troubles is not None:
                troubles.judge()
            nemesis.visits.judge()
            cluster.start_again()
    except AssertionError as error:
        failure = str(error) or "".join(traceback.format_exception(error)[-12:])
    except Exception as error:  # any other exception of a simulated member is a bug as well
        failure = "".join(traceback.format_exception(error))
    return outcome_of(cluster, seed, failure)


def outcome_of(cluster: SimCluster, seed: int, failure: str) -> ScheduleOutcome:
    """The verdict on a run that has ended. @param failure: empty if it passed."""
    trace = cluster.trace
    lines: list[str] = []
    if trace.echo is not None:
        lines = trace.echo
    elif failure:
        lines = trace.lines()
    acknowledged = sum(call.kind == "append" and call.outcome == "ok" for call in cluster.history.calls)
    return ScheduleOutcome(
        seed=seed, failure=failure, lines=tuple(lines), digest=trace.digest, steps=trace.steps,
        acknowledged=acknowledged, committed=cluster.invariants.last_committed + 1,
        elections=cluster.invariants.elections,
        restarts=sum(member.boots - 1 for member in cluster.members.values()),
    )
