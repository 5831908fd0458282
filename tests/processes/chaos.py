# -*- test-case-name: tests.processes.test_chaos -*-
"""
Real members, killed and paused under the load of real clients; afterwards no entry may be missing.

    python -m tests.processes.chaos --rounds 30 --flush sync --seed 7

A round is one of: SIGKILL for the leader, for a follower, for all members at once; SIGSTOP for the leader
until the others have continued without it, then SIGCONT and reads at it that must not be stale. After the
rounds the members stop cleanly, and their directories and the clients' histories are compared, see
L{tests.processes.histories} and L{tests.processes.ledgers}.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import click

from benchmarks.common import quantile
from dledger.base.disk.disk import OsDisk
from dledger.storage.start.verify import verify_directory
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.entry import bodies_of
from protocols.wire.ledger.messages import GetRequest, GetResponse
from tests.processes.asking import Asker, NoAnswer, ask
from tests.processes.children import ChildError, TalkingChild, end_all, wait_until
from tests.processes.histories import History, check_history
from tests.processes.ledgers import LedgerFault, assert_identical, read_records
from tests.processes.members import ROOT, Group, ended_well
from tests.processes.writer import Attempt, body_of

ACTIONS = ("kill-leader", "kill-follower", "kill-all", "pause-leader")
BODY_BYTES = 200
#: Small files, so that rolling over is part of every run.
FILE_OPTIONS = {"mapped_file_size_for_entry_data": 1 << 20, "mapped_file_size_for_entry_index": 32 * 8192}
#: Java needs about 8 s for a first failover; ours must be far below this limit.
FAILOVER_SECONDS_MAX = 15.0


@attrs.define
class Report:
    """
    The findings of a run.

    @ivar wrong: all errors; empty after a good run.
    @ivar failover_ms: from SIGKILL of the leader to the first acknowledgement of an append that was
        called after it; C{pause_ms} the same from SIGSTOP, after which no connection closes.
    @ivar stale_checks: linearizable reads sent to a leader that was just resumed.
    """

    rounds: list[str] = attrs.Factory(list)
    wrong: list[str] = attrs.Factory(list)
    failover_ms: list[float] = attrs.Factory(list)
    pause_ms: list[float] = attrs.Factory(list)
    stale_checks: int = 0
    stale_answers: dict[str, int] = attrs.Factory(dict)
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    entries: int = 0

    def lines(self) -> Iterator[str]:
        """The report for people."""
        yield (
            f"{len(self.rounds)} rounds; {self.acknowledged} appends acknowledged, {self.unknown} unknown, "
            f"{self.failed} failed; {self.entries} entries on every member"
        )
        for after, spans_ms in (("SIGKILL", self.failover_ms), ("SIGSTOP", self.pause_ms)):
            if spans_ms:
                yield (
                    f"failover after {after}: p50 {quantile(spans_ms, 0.5):.0f} ms, "
                    f"longest {max(spans_ms):.0f} ms"
                )
        yield f"{self.stale_checks} reads at resumed leaders: {self.stale_answers}"
        yield from self.wrong


class Chaos:
    """
    One group, one writer process, one seed.

    Invariant: between rounds all members run, and none is paused.
    """

    def __init__(
        self, directory: Path, *, flush: str, seed: int, rate: float = 1500.0, wire: str = "auto"
    ) -> None:
        """@param wire: between members, and for the clients."""
        self.report = Report()
        self.group = Group(directory, options={"flush_disk_type": flush, "wire": wire, **FILE_OPTIONS})
        self.history = History(directory / "history")
        self._chance = random.Random(seed)
        self._writer = TalkingChild(
            "writer",
            [sys.executable, "-m", "tests.processes.writer", "--peers", self.group.peers_text, "--history",
             str(self.history.path), "--rate", str(rate), "--body-bytes", str(BODY_BYTES), "--wire", wire],
            log_path=directory / "writer.log", environment={"PYTHONPATH": str(ROOT)},
        )

    def start(self) -> None:
        """Start members, then the writer; return when an append is acknowledged."""
        self.group.start()
        self.group.leader()
        self._writer.start()
        self._writer.wait_started()
        self.wait_acknowledged(time.monotonic() * 1000)

    def wait_acknowledged(self, called_after_ms: float, *, seconds: float = FAILOVER_SECONDS_MAX) -> Attempt:
        """Among the appends called after that moment, the first acknowledged one."""
        found: list[Attempt] = []

        def acknowledged() -> bool:
            attempt = self.history.first_ok_after(called_after_ms)
            if attempt is not None:
                found.append(attempt)
            return attempt is not None

        try:
            wait_until(acknowledged, seconds=seconds, what="an acknowledged append")
        except ChildError as error:
            tails = "\n".join(member.log_tail() for member in self.group.members.values())
            raise ChildError(f"{error}\n{self._writer.log_tail()}\n{tails}") from None
        return found[0]

    def play(self, action: str) -> None:
        """Play one round; afterwards all members run and appends are acknowledged."""
        self.report.rounds.append(action)
        leader_id = self.group.leader()
        followers = [peer_id for peer_id in self.group.members if peer_id != leader_id]
        if action == "pause-leader":
            self._pause_leader(leader_id)
        elif action == "kill-all":
            self._kill(list(self.group.members))
        elif action == "kill-leader":
            self._kill([leader_id])
        else:
            self._kill([self._chance.choice(followers)])
        time.sleep(self._chance.uniform(0.1, 0.6))

    def _kill(self, victims: list[str]) -> None:
        leader_id = self.group.leader()
        before_ms = time.monotonic() * 1000
        for peer_id in victims:
            self.group.members[peer_id].kill()
        if len(victims) > 1:
            time.sleep(self._chance.uniform(0.0, 0.3))
            before_ms = time.monotonic() * 1000
        else:
            first = self.wait_acknowledged(before_ms)
            if leader_id in victims:
                self.report.failover_ms.append(first.done_ms - before_ms)
            time.sleep(self._chance.uniform(0.0, 0.5))
        self._chance.shuffle(victims)
        for peer_id in victims:
            self.group.members[peer_id].start()
        self.wait_acknowledged(before_ms)
        self._wait_caught_up(victims)

    def _wait_caught_up(self, peer_ids: list[str]) -> None:
        """Wait until the members have the entries that were acknowledged before this call."""
        self.history.read_on()
        wanted = max((attempt.index for attempt in self.history.outcomes), default=-1)

        def caught_up() -> bool:
            said = [self.group.members[peer_id].metadata(seconds=1.0) for peer_id in peer_ids]
            return all(answer is not None and answer.committed_index >= wanted for answer in said)

        wait_until(caught_up, seconds=30, what=f"{peer_ids} with entry {wanted}", every=0.05)

    def _pause_leader(self, leader_id: str) -> None:
        leader = self.group.members[leader_id]
        others = tuple(peer_id for peer_id in self.group.members if peer_id != leader_id)
        native = bool(self._chance.getrandbits(1))
        with Asker(self.group.peers[leader_id], native=native, seconds=10.0) as asker:
            before_ms = time.monotonic() * 1000
            leader.pause()
            try:
                first = self.wait_acknowledged(before_ms)
                self.report.pause_ms.append(first.done_ms - before_ms)
                new_leader_id = self.group.leader(among=others)
                time.sleep(self._chance.uniform(0.0, 0.5))
                self.history.read_on()
                fresh = [
                    attempt for attempt in self.history.outcomes
                    if attempt.outcome == "ok" and attempt.sent_ms > before_ms
                ]
                sample = [fresh[0], fresh[-1], *self._chance.sample(fresh, min(10, len(fresh)))]
                self._read_at_others(new_leader_id, others, sample)
                asked = [
                    (attempt, asker.send(self._get(leader_id, attempt.index, Consistency.LINEARIZABLE)))
                    for attempt in sample
                ]
            finally:
                leader.resume()
            for attempt, opaque in asked:
                self._judge_resumed(asker, attempt, opaque)
        self._wait_caught_up([leader_id])

    @staticmethod
    def _get(peer_id: str, index: int, consistency: Consistency) -> GetRequest:
        return GetRequest(group="default", remote_id=peer_id, begin_index=index, consistency=consistency)

    def _judge_resumed(self, asker: Asker, attempt: Attempt, opaque: int) -> None:
        """The resumed leader may refuse, or give the acknowledged body; anything else is stale."""
        self.report.stale_checks += 1
        try:
            answer = asker.collect(opaque)
        except NoAnswer:
            self._count("no answer")
            return
        assert isinstance(answer, GetResponse)
        self._count(answer.code.name)
        if answer.code is ResponseCode.SUCCESS:
            assert answer.entries is not None
            if bodies_of(answer.entries) != [body_of(attempt.writer, attempt.sequence, BODY_BYTES)]:
                self.report.wrong.append(f"STALE: entry {attempt.index} at a resumed leader is another one")
        elif answer.code in (ResponseCode.INDEX_OUT_OF_RANGE, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN):
            self.report.wrong.append(
                f"STALE: a resumed leader says that entry {attempt.index}, acknowledged, is out of range"
            )

    def _count(self, answer: str) -> None:
        self.report.stale_answers[answer] = self.report.stale_answers.get(answer, 0) + 1

    def _read_at_others(self, new_leader_id: str, others: tuple[str, ...], sample: list[Attempt]) -> None:
        """The new leader has every acknowledged entry; a follower has it or knows that it lags."""
        for attempt in sample:
            for peer_id in others:
                leads = peer_id == new_leader_id
                consistency = Consistency.LINEARIZABLE if leads else Consistency.COMMITTED
                try:
                    answer = ask(self.group.peers[peer_id], self._get(peer_id, attempt.index, consistency))
                except NoAnswer as error:
                    self.report.wrong.append(f"READ: {peer_id} did not answer: {error}")
                    continue
                assert isinstance(answer, GetResponse)
                body = body_of(attempt.writer, attempt.sequence, BODY_BYTES)
                if answer.code is ResponseCode.SUCCESS:
                    assert answer.entries is not None
                    if bodies_of(answer.entries) != [body]:
                        self.report.wrong.append(f"READ: {peer_id} has another entry {attempt.index}")
                elif answer.code is ResponseCode.INDEX_OUT_OF_RANGE and leads:
                    self.report.wrong.append(f"READ: leader {peer_id} lacks entry {attempt.index}")

    def finish(self) -> Report:
        """Stop all processes cleanly and compare."""
        self._writer.stop(seconds=40)
        end_index = self.group.wait_settled()
        for peer_id, status in self.group.stop().items():
            if not ended_well(status):
                self.report.wrong.append(f"STOP: {peer_id} ended with status {status}")
        paths = [member.ledger_path for member in self.group.members.values()]
        try:
            self.report.entries = assert_identical(paths, end_index)
            log = {record.index: record.body for record in read_records(paths[0])}
        except LedgerFault as fault:
            self.report.wrong.append(f"FILES: {fault}")
            return self.report
        for path in paths:
            verified = verify_directory(OsDisk(), str(path))
            self.report.wrong += [f"VERIFY: {path.name}: {finding}" for finding in verified.findings]
        self.history.read_on()
        outcomes = self.history.outcomes
        self.report.wrong += check_history(outcomes, log, body_bytes=BODY_BYTES)
        self.report.acknowledged = sum(attempt.outcome == "ok" for attempt in outcomes)
        self.report.failed = sum(attempt.outcome == "failed" for attempt in outcomes)
        self.report.unknown = sum(attempt.outcome == "unknown" for attempt in outcomes)
        return self.report

    def kill(self) -> None:
        """End every process."""
        self._writer.kill()
        self.group.kill()


def plan_rounds(rounds: int, seed: int) -> list[str]:
    """Every action equally often, in an order that depends on the seed."""
    planned = [ACTIONS[number % len(ACTIONS)] for number in range(rounds)]
    random.Random(seed).shuffle(planned)
    return planned


def run(
    directory: Path, *, rounds: list[str], flush: str, seed: int, rate: float = 1500.0, wire: str = "auto",
    notify: object = None,
) -> Report:
    """
    A whole run. Every process has ended when it returns.

    @param notify: called with a line of progress.
    """
    chaos = Chaos(directory, flush=flush, seed=seed, rate=rate, wire=wire)
    with contextlib.ExitStack() as stack:
        stack.callback(chaos.kill)
        chaos.start()
        for number, action in enumerate(rounds):
            begin_s = time.monotonic()
            chaos.play(action)
            if callable(notify):
                notify(f"round {number + 1}/{len(rounds)} {action}: {time.monotonic() - begin_s:.1f} s")
        return chaos.finish()


@click.command()
@click.option("--rounds", default=30, show_default=True)
@click.option("--flush", type=click.Choice(["async", "sync"]), default="async", show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--rate", default=1500.0, show_default=True, help="appends per second")
@click.option("--wire", type=click.Choice(["auto", "remoting", "binary"]), default="auto", show_default=True)
@click.option("--keep", type=click.Path(file_okay=False), help="leave the files in this directory")
def main(rounds: int, flush: str, seed: int, rate: float, wire: str, keep: str | None) -> None:
    """Kill and pause members under load; status 1 if anything is wrong."""
    with contextlib.ExitStack() as stack:
        stack.callback(end_all)
        if keep is None:
            keep = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        report = run(
            Path(keep), rounds=plan_rounds(rounds, seed), flush=flush, seed=seed, rate=rate, wire=wire,
            notify=click.echo,
        )
    for line in report.lines():
        click.echo(line)
    if report.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
