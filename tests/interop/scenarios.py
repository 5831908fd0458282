# -*- test-case-name: tests.interop.test_scenarios -*-
"""
Groups of Java members and ours under load, with faults that a seed chooses.

    python -m tests.interop.scenarios --rounds 200 --seed 1

A scenario: somebody leads (a Java member or one of ours, as the seed says), a writer appends, one or two
things happen, appends are acknowledged again, the writer pauses, and then everything that was
acknowledged must stand in every ledger, the ledgers must be equal byte for byte, data and index, and every
member must have committed all it has. Five scenarios follow one another in the same group, on the same
files. The seed and the number of a group say all that is decided; C{--group} plays one again.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import click

from tests.interop.java import JavaMember
from tests.interop.load import BODY_BYTES_MAX, Load
from tests.interop.mixed import JAVA, OURS, MixedGroup
from tests.processes.asking import NoAnswer
from tests.processes.children import ChildError, end_all, wait_until
from tests.processes.ledgers import LedgerFault

FAULTS = (
    "kill-leader", "kill-follower", "kill-leader", "pause-leader", "pause-follower", "lose-from-leader",
    "lose-to-leader", "transfer", "kill-all",
)
PER_GROUP = 5
DATA_FILE_BYTES = (1 << 13, 1 << 14, 1 << 16)
INDEX_FILE_ENTRIES = (20, 100, 256)
assert min(DATA_FILE_BYTES) > 4 * BODY_BYTES_MAX


@attrs.frozen(kw_only=True)
class Plan:
    """
    What a seed decides about one group.

    @ivar preferred: the member that leadership is to come back to by itself, or none.
    @ivar scenarios: for each, the kind that is to lead, and the faults.
    """

    kinds: tuple[str, ...]
    batch_push: bool
    data_file_bytes: int
    index_file_entries: int
    preferred: str | None
    scenarios: tuple[tuple[str, tuple[str, ...]], ...]


def plan_group(seed: int, number: int) -> Plan:
    """@return: always the same for the same seed and number."""
    chance = random.Random(f"{seed}/{number}")
    kinds = [OURS, JAVA, JAVA] if number % 2 == 0 else [OURS, OURS, JAVA]
    chance.shuffle(kinds)
    # Every fault has its turn before one comes again.
    deck = [fault for _round in range(2) for fault in chance.sample(FAULTS, len(FAULTS))]
    scenarios = []
    for scenario in range(PER_GROUP):
        faults = tuple(deck.pop() for _fault in range(chance.choice((1, 1, 2))))
        scenarios.append(((JAVA, OURS)[(scenario + number) % 2], faults))
    return Plan(
        kinds=tuple(kinds),
        batch_push=chance.random() < 0.5,
        data_file_bytes=chance.choice(DATA_FILE_BYTES),
        index_file_entries=chance.choice(INDEX_FILE_ENTRIES),
        preferred=f"n{chance.randrange(len(kinds))}" if number % 4 == 3 else None,
        scenarios=tuple(scenarios),
    )


class Stage:
    """One group, its writer, and the faults."""

    def __init__(self, directory: Path, plan: Plan, *, seed: int) -> None:
        index_bytes = 32 * plan.index_file_entries
        java: dict[str, object] = {
            "mappedFileSizeForEntryData": plan.data_file_bytes,
            "mappedFileSizeForEntryIndex": index_bytes, "enableBatchPush": plan.batch_push,
        }
        ours: dict[str, object] = {
            "mapped_file_size_for_entry_data": plan.data_file_bytes,
            "mapped_file_size_for_entry_index": index_bytes,
        }
        if plan.preferred is not None:
            java["preferredLeaderIds"] = ours["preferred_leader_ids"] = plan.preferred
        self.plan = plan
        self.group = MixedGroup(directory, plan.kinds, java=java, ours=ours, lossy=True)
        self.group.start()
        self.group.leader()
        self.load = Load(self.group.peers, self.group.name, self.group.acknowledged, seed=seed)
        self._chance = random.Random(seed)

    def close(self) -> None:
        """End the writer and every member."""
        self.load.close()
        self.group.kill()

    def play(self, kind: str, faults: tuple[str, ...]) -> str:
        """
        One scenario.

        @return: what happened, for people.
        @raise ChildError: somebody did not do what was waited for, or something was lost.
        @raise LedgerFault: the ledgers differ.
        """
        if self.plan.preferred is None and self.group.kinds[self.group.leader()] != kind:
            self.group.lead(self._chance.choice(self.group.of_kind(kind)))
        self.load.go()
        self.load.wait_acknowledged()
        told = []
        for fault in faults:
            leader_id = self.group.leader()
            began = time.monotonic()
            who = self.act(fault, leader_id)
            self.load.wait_acknowledged()
            took = time.monotonic() - began
            told.append(f"{fault} {who} (leader {self.group.kinds[leader_id]}): {took:.1f} s")
        if self.plan.preferred is not None:
            preferred = self.plan.preferred
            wait_until(lambda: self.group.leader() == preferred, seconds=60, what=f"{preferred} leading")
            told.append(f"preferred {preferred} leads")
            self.load.wait_acknowledged()
        self.load.pause()
        end_index = self.group.check()
        if self.load.twice:
            raise ChildError(f"acknowledged twice: {self.load.twice[:10]}")
        self._wait_committed(end_index)
        return f"{'; '.join(told)}; {end_index + 1} entries, {len(self.group.acknowledged)} acknowledged"

    def act(self, fault: str, leader_id: str) -> str:
        """
        Do one thing under load and undo it.

        @return: the member that it was done to.
        """
        followers = [peer_id for peer_id in self.group.members if peer_id != leader_id]
        follower_id = self._chance.choice(followers)
        links = self.group.links
        assert links is not None
        if fault == "transfer":
            self.load.pause()
            self.group.lead(follower_id)
            self.load.go()
            return follower_id
        if fault.startswith("lose"):
            way = (leader_id, follower_id) if fault == "lose-from-leader" else (follower_id, leader_id)
            links.lose(way)
            time.sleep(self._chance.uniform(0.5, 6.0))
            links.heal()
            return f"{way[0]}->{way[1]}"
        if fault == "kill-all":
            self._kill(*self.group.members)
            return "all"
        victim_id = leader_id if fault.endswith("leader") else follower_id
        if fault.startswith("kill"):
            self._kill(victim_id)
        else:
            self.group.members[victim_id].pause()
            time.sleep(self._chance.uniform(0.5, 8.0))
            self.group.members[victim_id].resume()
        return victim_id

    def _kill(self, *victim_ids: str) -> None:
        for peer_id in victim_ids:
            self.group.members[peer_id].kill()
        time.sleep(self._chance.uniform(0.0, 2.0))
        if len(victim_ids) == 1 and self._chance.random() < 0.5:
            self.load.wait_acknowledged()
        for peer_id in victim_ids:
            self._remove_unmade_files(peer_id)
        self.group.start(*victim_ids)

    def _remove_unmade_files(self, peer_id: str) -> None:
        """Java that was killed between making a file and giving it its length never starts again with it."""
        if self.group.kinds[peer_id] == JAVA:
            for path in (self.group.members[peer_id].directory / f"dledger-{peer_id}").glob("*/*"):
                if path.name.isdecimal() and path.stat().st_size == 0:
                    path.unlink()

    def _wait_committed(self, end_index: int) -> None:
        said: dict[str, object] = {}

        def committed() -> bool:
            for peer_id, member in self.group.members.items():
                if isinstance(member, JavaMember):
                    said[peer_id] = int(member.status()["committed"])
                else:
                    answer = member.metadata()
                    said[peer_id] = None if answer is None else answer.committed_index
            return all(index == end_index for index in said.values())

        try:
            wait_until(committed, seconds=20, what=f"{end_index} committed everywhere", every=0.2)
        except ChildError as error:
            raise ChildError(f"{error}: {said}") from None


def play_group(directory: Path, seed: int, number: int, count: int) -> Iterator[tuple[bool, str]]:
    """
    Up to C{count} scenarios in one group; a failed one ends it.

    @return: for each whether it passed, and a line about it.
    """
    plan = plan_group(seed, number)
    stage: Stage | None = None
    try:
        for scenario, (kind, faults) in enumerate(plan.scenarios[:count]):
            began = time.monotonic()
            push = "batches" if plan.batch_push else "one by one"
            name = f"group {number}.{scenario} {'+'.join(plan.kinds)}, {push}, led by {kind}"
            try:
                stage = stage or Stage(directory, plan, seed=number)
                told = stage.play(kind, faults)
            except (ChildError, LedgerFault, NoAnswer, OSError) as error:
                yield False, f"FAILED {name}: {', '.join(faults)}: {error}"
                return
            yield True, f"ok {time.monotonic() - began:5.1f} s {name}: {told}"
    finally:
        if stage is not None:
            stage.close()


def run(*, rounds: int, seed: int, first_group: int = 0, keep: Path | None = None) -> tuple[int, int]:
    """
    Play scenarios, telling of each on standard output.

    @param keep: where the directories of a group that failed are moved to.
    @return: passed, failed.
    """
    passed = failed = 0
    number = first_group
    while passed + failed < rounds:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            ended_well = True
            for is_ok, line in play_group(Path(name), seed, number, rounds - passed - failed):
                ended_well = is_ok
                passed, failed = passed + is_ok, failed + (not is_ok)
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            if keep is not None and not ended_well:
                shutil.copytree(name, keep / f"group-{seed}-{number}", dirs_exist_ok=True)
        number += 1
    return passed, failed


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Scenarios to play.")
@click.option("--seed", default=1, show_default=True)
@click.option("--group", "first_group", default=0, show_default=True, help="Number of the first group.")
@click.option("--keep", type=click.Path(path_type=Path), help="Where failed groups are kept.")
def main(rounds: int, seed: int, first_group: int, keep: Path | None) -> None:
    """Scenarios of groups with Java members and ours, chosen by a seed."""
    try:
        passed, failed = run(rounds=rounds, seed=seed, first_group=first_group, keep=keep)
    finally:
        end_all()
    sys.stdout.write(f"{passed} scenarios passed, {failed} failed\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
