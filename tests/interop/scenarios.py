# -*- test-case-name: tests.interop.test_scenarios -*-
"""
Groups of Java members and ours under load, with faults that a seed chooses.

    python -m tests.interop.scenarios --rounds 200 --seed 1

A scenario: a Java member or one of ours leads, as the seed decides, a writer appends, one or two faults
happen, appends are acknowledged again, and the writer pauses. Then every ledger must hold all acknowledged
appends, the ledgers must be equal byte for byte, data and index, and every member must have committed all its
entries. Five scenarios follow one another in the same group, on the same files; then our members stop
cleanly, and their directories must be sound.

Four groups together have everything: every fault under either kind of leader, both mixtures, Java's
batches and single pushes, a preferred leader. The events are counted (L{tests.interop.tally}), and twenty
scenarios without one of the needed events have failed. The seed and the number of a group decide everything;
C{--group} repeats one.
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

from dledger.base.disk.disk import OsDisk
from dledger.storage.start.verify import verify_directory
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import LeadershipTransferResponse
from tests.interop.java import JavaMember
from tests.interop.load import BODY_BYTES_MAX, Load
from tests.interop.mixed import DEADLINE_S, JAVA, OURS, MixedGroup
from tests.interop.tally import Tally
from tests.processes.asking import NoAnswer
from tests.processes.children import ChildError, end_all, wait_until
from tests.processes.ledgers import LedgerFault

FAULTS = (
    "kill-leader", "kill-follower", "pause-leader", "pause-follower", "lose-from-leader", "lose-to-leader",
    "transfer", "kill-all",
)
PER_GROUP = 5
#: Groups that together have every fault under either kind of leader.
PER_BLOCK = 4
DATA_FILE_BYTES = (1 << 13, 1 << 14, 1 << 16)
INDEX_FILE_ENTRIES = (20, 100, 256)
assert min(DATA_FILE_BYTES) > 4 * BODY_BYTES_MAX
assert PER_GROUP * PER_BLOCK >= 2 * len(FAULTS)


@attrs.frozen(kw_only=True)
class Act:
    """
    One fault.

    @ivar fault: one of L{FAULTS}.
    @ivar to_other_kind: the follower in it is not of the leader's kind, if possible.
    """

    fault: str
    to_other_kind: bool


@attrs.frozen(kw_only=True)
class Plan:
    """
    The decisions of a seed about one group.

    @ivar preferred: the member that must get leadership back without a request; None: no member.
    @ivar scenarios: for each, the kind that must lead, and its faults.
    """

    kinds: tuple[str, ...]
    batch_push: bool
    data_file_bytes: int
    index_file_entries: int
    preferred: str | None
    scenarios: tuple[tuple[str, tuple[Act, ...]], ...]


def plan_group(seed: int, number: int) -> Plan:
    """@return: always the same for the same seed and number."""
    return plan_block(seed, number // PER_BLOCK)[number % PER_BLOCK]


def plan_block(seed: int, block: int) -> tuple[Plan, ...]:
    """The plans of L{PER_BLOCK} groups, which together have everything."""
    chance = random.Random(f"{seed}/{block}")
    mixtures = [[OURS, JAVA, JAVA], [OURS, OURS, JAVA]] * 2
    batches = [chance.random() < 0.5, chance.random() < 0.5]
    batches += [not batch for batch in batches]  # batches and single pushes with either mixture
    for kinds in mixtures:
        chance.shuffle(kinds)
    with_preferred = chance.randrange(PER_BLOCK)
    preferred = chance.randrange(3)
    decks = {
        kind: [Act(fault=fault, to_other_kind=True) for fault in chance.sample(FAULTS, len(FAULTS))]
        for kind in (JAVA, OURS)
    }
    own = mixtures[with_preferred][preferred]
    # A preferred leader shows that it comes back after a transfer; after a kill it may remain the leader.
    decks[own].sort(key=lambda act: act.fault == "transfer")
    own_deck = [(own, decks[own].pop()) for _scenario in range(PER_GROUP)]
    deck = [(kind, act) for kind, acts in decks.items() for act in acts]
    while len(deck) < PER_GROUP * (PER_BLOCK - 1):
        deck.append((chance.choice((JAVA, OURS)), _any_act(chance)))
    chance.shuffle(deck)
    plans = []
    for number, kinds in enumerate(mixtures):
        mine = own_deck if number == with_preferred else [deck.pop() for _scenario in range(PER_GROUP)]
        plans.append(Plan(
            kinds=tuple(kinds),
            batch_push=batches[number],
            data_file_bytes=chance.choice(DATA_FILE_BYTES),
            index_file_entries=chance.choice(INDEX_FILE_ENTRIES),
            preferred=f"n{preferred}" if number == with_preferred else None,
            scenarios=tuple(
                (kind, (act, _any_act(chance)) if chance.random() < 0.3 else (act,)) for kind, act in mine
            ),
        ))
    return tuple(plans)


def _any_act(chance: random.Random) -> Act:
    return Act(fault=chance.choice(FAULTS), to_other_kind=chance.random() < 0.5)


class Stage:
    """One group, its writer, and the faults."""

    def __init__(self, directory: Path, plan: Plan, tally: Tally, *, seed: int) -> None:
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
        self.plan, self.tally = plan, tally
        kinds = {f"n{number}": kind for number, kind in enumerate(plan.kinds)}
        self.group = MixedGroup(
            directory, plan.kinds, java=java, ours=ours, lossy=True, tap=tally.tap(kinds)
        )
        push = "in batches" if plan.batch_push else "one by one"
        tally.add(f"group whose Java members push {push}")
        self.group.start()
        self.group.leader()
        self.load = Load(self.group.peers, self.group.name, self.group.acknowledged, seed=seed)
        self._chance = random.Random(seed)
        self._was_handed_over = False

    def close(self) -> None:
        """End the writer and every member."""
        self.load.close()
        self.group.kill()

    def end(self) -> None:
        """
        After the scenarios: count the files, and stop our members cleanly.

        @raise ChildError: one of ours did not stop, or its directory is damaged.
        """
        links = self.group.links
        assert links is not None
        for (source, target), lost in links.lost.items():
            kinds = self.group.kinds
            self.tally.add(f"bytes lost from {kinds[source]} to {kinds[target]}", lost)
        for peer_id in self.group.of_kind(OURS):
            member = self.group.members[peer_id]
            member.stop()
            ledger = member.directory / f"dledger-{peer_id}"
            found = verify_directory(OsDisk(), str(ledger)).findings
            if found:
                raise ChildError(f"{peer_id} has stopped, and verify says: {found[:3]}")
        self.tally.add_files(ledger)

    def play(self, kind: str, acts: tuple[Act, ...]) -> str:
        """
        Play one scenario.

        @return: its events, for people.
        @raise ChildError: a member did not do what was expected in time, or an entry is lost.
        @raise LedgerFault: the ledgers differ.
        """
        if self.plan.preferred is not None:
            self._wait_preferred()
        else:
            self._wait_led_by(kind)
        self.load.go()
        self.load.wait_acknowledged()
        if self.plan.preferred is None:
            self._wait_led_by(kind)  # leadership may have been lost meanwhile
        reported = []
        for act in acts:
            leader_id = self.group.leader()
            led_by = self.group.kinds[leader_id]
            self.tally.add(f"appends acknowledged under a leader of kind {led_by}")
            began = time.monotonic()
            who = self.act(act, leader_id)
            self.load.wait_acknowledged()
            took = time.monotonic() - began
            reported.append(f"{act.fault} {who} (leader {led_by}): {took:.1f} s")
        if self.plan.preferred is not None:
            had_lost = self._was_handed_over or self.group.leader() != self.plan.preferred
            self._was_handed_over = False
            self._wait_preferred()
            reported.append(f"preferred {self.plan.preferred} leads{' again' if had_lost else ''}")
            self.tally.add("preferred leader leads again", had_lost)
            self.load.wait_acknowledged()
        self.load.pause()
        end_index = self.group.check()
        if self.load.twice:
            raise ChildError(f"acknowledged twice: {self.load.twice[:10]}")
        self._wait_committed(end_index)
        return f"{'; '.join(reported)}; {end_index + 1} entries, {len(self.group.acknowledged)} acknowledged"

    def _wait_led_by(self, kind: str) -> None:
        if self.group.kinds[self.group.leader()] != kind:
            self.group.lead(self._chance.choice(self.group.of_kind(kind)))

    def _wait_preferred(self) -> None:
        preferred = self.plan.preferred
        wait_until(lambda: self.group.leader() == preferred, seconds=DEADLINE_S, what=f"{preferred} leading")

    def act(self, act: Act, leader_id: str) -> str:
        """
        Cause one fault under load and end it.

        @return: the member concerned.
        """
        follower_id = self._follower(act, leader_id)
        kinds = self.group.kinds
        if act.fault == "transfer":
            self.load.pause()
            if self.plan.preferred is None:
                self.group.lead(follower_id)
            else:
                # It does not keep leadership, so it may never be seen as the leader.
                self._hand_over(leader_id, follower_id)
                self._was_handed_over = leader_id == self.plan.preferred
            self.load.go()
            self.tally.add(f"transfer from {kinds[leader_id]} to {kinds[follower_id]}")
            return follower_id
        if act.fault.startswith("lose"):
            way = (leader_id, follower_id) if act.fault == "lose-from-leader" else (follower_id, leader_id)
            assert self.group.links is not None
            self.group.links.lose(way)
            time.sleep(self._chance.uniform(0.5, 6.0))
            self.group.links.heal()
            return f"{way[0]}->{way[1]}"
        if act.fault == "kill-all":
            self._kill(*self.group.members)
            self.tally.add("SIGKILL and restart of all")
            return "all"
        deed, _dash, role = act.fault.partition("-")
        victim_id = leader_id if role == "leader" else follower_id
        if deed == "kill":
            self._kill(victim_id)
            self.tally.add(f"SIGKILL and restart of a {role} of kind {kinds[victim_id]}")
        else:
            self.group.members[victim_id].pause()
            time.sleep(self._chance.uniform(0.5, 8.0))
            self.group.members[victim_id].resume()
            self.tally.add(f"SIGSTOP of a {role} of kind {kinds[victim_id]}")
        return victim_id

    def _hand_over(self, leader_id: str, peer_id: str) -> None:
        def is_done() -> bool:
            answer = self.group.transfer(leader_id, peer_id)
            return isinstance(answer, LeadershipTransferResponse) and answer.code is ResponseCode.SUCCESS

        wait_until(is_done, seconds=DEADLINE_S, what=f"a transfer from {leader_id} to {peer_id}", every=0.3)

    def _follower(self, act: Act, leader_id: str) -> str:
        """The follower that takes part in the fault."""
        kinds = self.group.kinds
        followers = [peer_id for peer_id in kinds if peer_id != leader_id]
        others = [peer_id for peer_id in followers if kinds[peer_id] != kinds[leader_id]]
        return self._chance.choice(others if act.to_other_kind and others else followers)

    def _kill(self, *victim_ids: str) -> None:
        for peer_id in victim_ids:
            self.group.members[peer_id].kill()
        time.sleep(self._chance.uniform(0.0, 2.0))
        if len(victim_ids) == 1 and self._chance.random() < 0.5:
            self.load.wait_acknowledged()
        self.group.start(*victim_ids)

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
            wait_until(committed, seconds=DEADLINE_S, what=f"{end_index} committed everywhere", every=0.2)
        except ChildError as error:
            raise ChildError(f"{error}: {said}") from None


def play_group(
    directory: Path, seed: int, number: int, count: int, tally: Tally
) -> Iterator[tuple[bool, str]]:
    """
    Play up to C{count} scenarios in one group; a failed one ends it.

    @return: for each, whether it passed, and a line about it.
    """
    plan = plan_group(seed, number)
    stage: Stage | None = None
    last = min(count, len(plan.scenarios)) - 1
    try:
        for scenario, (kind, acts) in enumerate(plan.scenarios[: last + 1]):
            began = time.monotonic()
            push = "batches" if plan.batch_push else "one by one"
            name = f"group {number}.{scenario} {'+'.join(plan.kinds)}, {push}, led by {kind}"
            try:
                stage = stage or Stage(directory, plan, tally, seed=number)
                reported = stage.play(kind, acts)
                if scenario == last:
                    stage.end()
            except (ChildError, LedgerFault, NoAnswer, OSError) as error:
                faults = ", ".join(act.fault for act in acts)
                yield False, f"FAILED {name}: {faults}: {error}"
                return
            yield True, f"ok {time.monotonic() - began:5.1f} s {name}: {reported}"
    finally:
        if stage is not None:
            stage.close()


def run(*, rounds: int, seed: int, first_group: int = 0, keep: Path | None = None) -> tuple[int, int]:
    """
    Play scenarios, reporting each on standard output, and at the end their events.

    @param keep: the directories of failed groups are copied to this one.
    @return: passed, failed; if needed events never happened, that counts as one more failure.
    """
    passed = failed = 0
    number = first_group
    tally = Tally()
    while passed + failed < rounds:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            ended_well = True
            for is_ok, line in play_group(Path(name), seed, number, rounds - passed - failed, tally):
                ended_well = is_ok
                passed, failed = passed + is_ok, failed + (not is_ok)
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            if keep is not None and not ended_well:
                shutil.copytree(name, keep / f"group-{seed}-{number}", dirs_exist_ok=True)
        number += 1
    sys.stdout.write(f"what happened in {passed + failed} scenarios:\n{tally.table()}")
    if rounds >= PER_GROUP * PER_BLOCK and not failed and tally.missing():
        sys.stdout.write(f"FAILED: these never happened: {', '.join(tally.missing())}\n")
        failed += 1
    return passed, failed


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Scenarios to play.")
@click.option("--seed", default=1, show_default=True)
@click.option("--group", "first_group", default=0, show_default=True, help="Number of the first group.")
@click.option("--keep", type=click.Path(path_type=Path), help="Where failed groups are kept.")
def main(rounds: int, seed: int, first_group: int, keep: Path | None) -> None:
    """Play scenarios of groups with Java members and ours, chosen by a seed."""
    try:
        passed, failed = run(rounds=rounds, seed=seed, first_group=first_group, keep=keep)
    finally:
        end_all()
    sys.stdout.write(f"{passed} scenarios passed, {failed} failed\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
