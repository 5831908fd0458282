# -*- test-case-name: tests.sim.test_scenarios -*-
"""
Scripts of events in a group, one command a line; docs/how-to-debug.md lists the commands::

    nodes 3 flush_disk_type=sync
    lead n0
    append n0 a b
    advance 1
    expect log n1 - a b
    expect answer a SUCCESS

No member stands for election unless the script says C{lead} or C{elections on}: the result depends on the
script alone. The lines after C{status} are its expected output; C{python -m dledger.testing.group.scenario
--rewrite FILE} updates them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from dledger.node.node import Node
from dledger.node.requests.appends import AppendResult
from dledger.testing.group.expectations import (
    Expectations,
    ScriptedGroup,
    ScriptFailed,
    expect_same,
    member_of,
)
from dledger.testing.group.injection.injector import Injector
from dledger.testing.group.members.cluster import SECOND_US, GroupOptions, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.group.script_calls import ScriptCalls
from dledger.testing.world.disk import PowerLoss, ProcessKilled
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.option_values import converted
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE, bodies_of
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    MessageFields,
    PushEntryRequest,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)

_FAR_MS = 1 << 40
#: Heartbeats that a follower may miss: no election within any script.
_PATIENT = 1_000_000

_T = TypeVar("_T")


class Scenario:
    """
    One script, run line by line.

    @ivar printed: the script with the present output of C{status}.
    """

    def __init__(self, text: str, *, name: str = "script", seed: int = 1) -> None:
        self.printed: list[str] = []
        self._lines = text.splitlines()
        self._name = name
        self._seed = seed
        self._group: ScriptedGroup | None = None

    def run(self, *, rewrite: bool = False) -> None:
        """
        Run every line.

        @raise ScriptFailed: an expectation does not hold, or a line makes no sense.
        """
        number = 0
        while number < len(self._lines):
            line = self._lines[number]
            number += 1
            words = shlex.split(line, comments=True)
            self.printed.append(line)
            if not words:
                continue
            try:
                if self._group is not None:
                    self._cluster.bugs.notify()
                if words[0] == "status":
                    number = self._status(number, rewrite=rewrite)
                else:
                    self._command(words)
            except AssertionError as error:
                where = f"{self._name}, line {number}: {line.strip()}"
                tail = "\n".join(self._cluster.trace.lines()[-12:]) if self._group else ""
                raise ScriptFailed(f"{where}\n{error}\n{tail}") from error

    @property
    def _cluster(self) -> SimCluster:
        if self._group is None:
            raise ScriptFailed("a script begins with 'nodes'")
        return self._group.cluster

    def _member(self, member_id: str) -> SimMember:
        return member_of(self._cluster, member_id)

    def _command(self, words: list[str]) -> None:
        method: Callable[..., None] | None = getattr(self, f"_do_{words[0]}", None)
        if method is None:
            raise ScriptFailed(f"there is no command {words[0]!r}")
        try:
            method(*words[1:])
        except TypeError as error:
            raise ScriptFailed(f"{words[0]}: {error}") from error

    # -- the group --------------------------------------------------------------------------------

    def _do_nodes(self, count: str, *settings: str) -> None:
        """C{nodes 3 [option=value ...] [n1.option=value ...]}: a group, started, without a leader."""
        common: dict[str, str] = {"max_heart_beat_leak": str(_PATIENT), "pre_vote": "false"}
        single: dict[str, dict[str, object]] = {}
        native = True
        for setting in settings:
            name, _, value = setting.partition("=")
            member_id, dot, option = name.partition(".")
            if name == "wire":
                native = value != "remoting"
            elif dot:
                single.setdefault(member_id, {}).update(_typed({option: value}))
            else:
                common[name] = value
        options = GroupOptions(
            members=int(count), settings=_typed(common), member_settings=single, is_native=native,
            delay_us=500, spread_us=1,
        )
        cluster = SimCluster(options, self._seed)
        cluster.restarts_us = None
        cluster.network.cut_chance = 0
        self._group = ScriptedGroup(cluster, Injector(cluster))
        for member in cluster.members.values():
            self._boot(member)

    def _boot(self, member: SimMember) -> None:
        if not member.start():
            raise ScriptFailed(f"{member.member_id} does not start: {member.start_error}")
        if self._group is not None and not self._group.elections:
            member.core.elector.deadline_ms = _FAR_MS

    def _do_elections(self, switch: str) -> None:
        """C{elections on|off}: whether members stand for election on a timeout."""
        assert self._group is not None
        self._group.elections = switch == "on"
        for member in self._cluster.members.values():
            leak = 4 if switch == "on" else _PATIENT
            object.__setattr__(member.config, "max_heart_beat_leak", leak)
            if member.is_up:
                elector = member.core.elector
                patience = elector.patience.allowed_ms() + 200 * member.number
                deadline_ms = int(member.node.seconds() * 1000) + patience
                elector.deadline_ms = deadline_ms if switch == "on" else _FAR_MS

    def _do_lead(self, member_id: str) -> None:
        """C{lead n0}: n0 stands for election, until it leads."""
        member = self._member(member_id)
        for _ in range(100):
            if self._leads(member):
                return
            self._stand(member)
        raise ScriptFailed(f"{member_id} does not get to lead: {self._cluster.describe()}")

    def _do_stand(self, member_id: str) -> None:
        """C{stand n0}: n0 stands for election once, won or lost."""
        self._stand(self._member(member_id))

    def _stand(self, member: SimMember) -> None:
        for voter in self._cluster.members.values():
            if voter.is_up:
                voter.core.elector.patience.heard_ms = -_FAR_MS  # the old leader has long been silent
        member.core.elector.deadline_ms = 0
        self._cluster.run(0.2)

    def _leads(self, member: SimMember) -> bool:
        return member.is_serving and member.core.status().role == "leader"

    def _do_advance(self, seconds: str) -> None:
        """C{advance 2.5}: let 2.5 simulated seconds pass."""
        self._cluster.run(float(seconds))

    def _do_settle(self) -> None:
        """C{settle}: end all faults; the group must become live and equal, its history linearizable."""
        self._do_elections("on")
        self._cluster.end_faults()
        self._cluster.settle()
        self._cluster.judge()

    # -- clients ------------------------------------------------------------------------------------

    def _notify(self, label: str, code: ResponseCode, index: int = -1,
                bodies: tuple[bytes, ...] = ()) -> None:
        assert self._group is not None
        self._group.answers[label] = (code.name, index, bodies)

    def _ask(self, member_id: str, label: str, ask: Callable[[Node], Deferred[_T]],
             reported: Callable[[_T], None], failed: Callable[[DLedgerError], None]) -> None:
        """Let a member do something; C{label} has no answer until then."""
        assert self._group is not None
        self._group.answers.pop(label, None)

        def error(failure: Failure) -> None:
            refused = failure.value
            assert isinstance(refused, DLedgerError), failure
            index = refused.facts.get("index", -1)
            self._notify(label, refused.code, index if isinstance(index, int) else -1)
            failed(refused)

        self._member(member_id).call(lambda node: ask(node).addCallbacks(reported, error))
        self._cluster.run(0.0001)

    def _do_append(self, member_id: str, *bodies: str) -> None:
        """C{append n0 a b}: one call with two bodies; the answer is labelled by the first."""
        count, star, body = bodies[0].partition("*")
        if star:
            for number in range(int(count)):
                self._do_append(member_id, f"{body}{number}")
            return
        history = self._cluster.history
        calls = [history.begin("append", client="script", body=body.encode()) for body in bodies]

        def reported(result: AppendResult) -> None:
            self._notify(bodies[0], ResponseCode.SUCCESS, result.index)
            for offset, call in enumerate(calls):
                history.end(call, "ok", index=result.index + offset)

        def failed(error: DLedgerError) -> None:
            if error.code not in (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.TERM_CHANGED):
                for call in calls:
                    history.end(call, "failed")

        self._ask(member_id, bodies[0], lambda one: one.append(tuple(map(str.encode, bodies))), reported,
                  failed)

    def _do_read(self, member_id: str, index: str, label: str) -> None:
        """C{read n0 3 r}: a linearizable get of entry 3 at n0; the answer is labelled r."""
        def reported(body: bytes) -> None:
            self._notify(label, ResponseCode.SUCCESS, int(index), (body,))

        self._ask(member_id, label, lambda node: node.read(int(index)), reported, _ignore)

    def _do_get(self, member_id: str, index: str, label: str) -> None:
        """C{get n0 3 r}: a get of entry 3 at n0, if n0 knows it is committed; the answer is labelled r."""
        def reported(batch: EntryBatch | None) -> None:
            if batch is None:
                self._notify(label, ResponseCode.INDEX_OUT_OF_RANGE)
            else:
                self._notify(label, ResponseCode.SUCCESS, int(index), tuple(bodies_of(batch)))

        def get(node: Node) -> Deferred[EntryBatch | None]:
            return maybeDeferred(node.read_committed, int(index), max_bytes=1)

        self._ask(member_id, label, get, reported, _ignore)

    def _do_transfer(self, member_id: str, label: str = "transfer") -> None:
        """C{transfer n1}: ask the leader to hand over to n1."""
        assert self._group is not None
        answers = self._group.answers
        answers.pop(label, None)

        def done(response: Response) -> None:
            answers[label] = (response.code.name, response.term, ())

        self._cluster.transfer(member_id, done)

    def _do_call(self, *words: str) -> None:
        """C{call batch|change|hand|stream ...}: see L{ScriptCalls}."""
        assert self._group is not None
        ScriptCalls(self._group, self._cluster.run).call(*words)

    # -- faults -------------------------------------------------------------------------------------

    def _links(self, words: tuple[str, ...]) -> list[tuple[str, str]]:
        """C{n0>n1}: one way; C{n0 n1}: both ways; C{n0}: between n0 and all others, both ways."""
        if len(words) == 2:
            return [(words[0], words[1]), (words[1], words[0])]
        source, arrow, target = words[0].partition(">")
        self._member(source)
        if arrow:
            return [(source, target)]
        others = [other for other in self._cluster.members if other != source]
        return [(source, other) for other in others] + [(other, source) for other in others]

    def _do_cut(self, *words: str) -> None:
        """C{cut n0 n1}, C{cut n0>n1}, C{cut n0}: hold back the messages on these links."""
        for source, target in self._links(words):
            self._cluster.network.cut(source, target)

    def _do_heal(self, *words: str) -> None:
        """C{heal n0 n1}, C{heal n0>n1}, C{heal n0}, C{heal}: let the messages through again."""
        if not words:
            self._cluster.network.heal_all()
            return
        for source, target in self._links(words):
            self._cluster.network.heal(source, target)

    def _do_lose(self, *words: str) -> None:
        """C{lose n0 n1}: break the connections; messages under way or held back are lost."""
        for source, target in self._links(words):
            self._cluster.network.lose(source, target)

    def _do_delay(self, source: str, target: str, seconds: str) -> None:
        """C{delay n0 n1 3}: requests on n0's connection to n1 take 3 seconds longer from now on."""
        self._cluster.network.delay_connection(source, target, int(float(seconds) * SECOND_US))

    def _do_reconnect(self, source: str, target: str, seconds: str) -> None:
        """C{reconnect n0 n1 5}: n0 opens a new connection; the old one delivers for 5 more seconds."""
        self._cluster.network.reconnect(source, target, late_us=int(float(seconds) * SECOND_US))

    def _do_crash(self, *ids: str) -> None:
        """C{crash n0}: the machine loses power."""
        for member_id in ids:
            self._member(member_id).lose_power()

    def _do_kill(self, *ids: str) -> None:
        """C{kill n0}: the process ends at once."""
        for member_id in ids:
            self._member(member_id).kill()

    def _do_wipe(self, *ids: str) -> None:
        """C{wipe n0}: the machine gets an empty disk."""
        for member_id in ids:
            self._member(member_id).lose_directory()

    def _do_restart(self, *ids: str) -> None:
        """C{restart n0}: start a member that is down."""
        for member_id in ids:
            self._boot(self._member(member_id))

    def _do_pause(self, member_id: str) -> None:
        """C{pause n0}: stop the process without ending it."""
        self._member(member_id).pause()

    def _do_resume(self, member_id: str) -> None:
        """C{resume n0}."""
        self._member(member_id).resume()

    def _do_stop(self, member_id: str) -> None:
        """C{stop n0}: ask the member to stop in an orderly way."""
        self._member(member_id).stop()

    def _do_fill(self, member_id: str, how: str = "") -> None:
        """C{fill n0 [in-place]}: its disk is full; in-place: also for writes to bytes that are there."""
        self._member(member_id).disk.set_full(True, copies_on_write=how == "in-place")

    def _do_drain(self, member_id: str) -> None:
        """C{drain n0}: its disk has room again, and works."""
        self._member(member_id).disk.disarm()

    def _do_slow(self, member_id: str, flush_ms: str) -> None:
        """C{slow n0 400}: its fsyncs take 400 ms on average; 0: as usual."""
        self._member(member_id).slow_disk(int(flush_ms) * 1000)

    def _do_fail(self, member_id: str, what: str) -> None:
        """C{fail n0 sync|write|read|kill|power}: the next such call fails, or the process dies in it."""
        disk = self._member(member_id).disk
        if what in ("kill", "power"):
            disk.arm(die_in=1, death=ProcessKilled if what == "kill" else PowerLoss)
        else:
            disk.arm(**{f"{what}s": 1})  # type: ignore[arg-type]

    def _do_damage(self, member_id: str, index: str, where: str = "data") -> None:
        """
        C{damage n0 3 [index]}: one bit of the record (or index unit) of entry 3 flips.
        C{damage n0 currterm 13}: a bit of the byte at 13 of that file of the member flips, the lowest.
        """
        member = self._member(member_id)
        if not index.isdecimal():
            member.disk.flip_bit(f"{member.config.self_path}/{index}", int(where), 0)
            return
        mirror = self._cluster.invariants.mirror(member_id)
        at = int(index) - mirror.begin_index
        config = member.config
        if where == "index":
            size, position = config.mapped_file_size_for_entry_index, int(index) * INDEX_UNIT_SIZE + 5
        else:
            size = config.mapped_file_size_for_entry_data
            record = self._cluster.invariants.record_size(member_id, int(index))
            position = mirror.ends[at] - record + min(ENTRY_HEADER_SIZE, record - 1)
        member.damaged.add(int(index))
        base = position - position % size
        member.disk.flip_bit(f"{config.self_path}/{where}/{base:020d}", position - base, 3)

    # -- messages by hand -----------------------------------------------------------------------------

    def _do_inject(self, member_id: str, label: str, kind: str, *settings: str) -> None:
        """
        C{inject n1 x COMMIT term=3 by=n0 commit=7 [entry=n0:4[-6]]}: send n1 this request; the code of its
        answer is labelled x. Kinds: COMPARE TRUNCATE APPEND COMMIT VOTE HEART_BEAT.
        """
        assert self._group is not None
        answers = self._group.answers
        given = dict(setting.split("=", 1) for setting in settings)
        member = self._member(member_id)
        request = self._message(member, kind, given)

        def done(response: Response) -> None:
            code = response.vote_result if isinstance(response, VoteResponse) else response.code
            answers[label] = (code.name, response.term, ())

        self._group.injector.send(member, given["by"], request, done)

    def _message(self, member: SimMember, kind: str, given: dict[str, str]) -> Request:
        base: MessageFields = {
            "group": member.config.group, "remote_id": member.member_id, "local_id": given["by"],
            "leader_id": given["by"], "term": int(given["term"]), "wire_version": 1,
        }
        if kind == "VOTE":
            return VoteRequest(
                **base, ledger_end_index=int(given["end"]), ledger_end_term=int(given["end_term"]),
            )
        if kind == "HEART_BEAT":
            return HeartBeatRequest(**base, heart_beat_interval_ms=600)
        entries = None
        if "entry" in given:
            source, _, span = given["entry"].partition(":")
            first, _, last = span.partition("-")
            count = int(last or first) - int(first) + 1
            entries = self._member(source).ledger.read_batch(int(first), max_count=count, max_bytes=1 << 20)
        return PushEntryRequest(
            **base, type=PushType[kind], commit_index=int(given.get("commit", -1)), entries=entries,
        )

    # -- expectations ---------------------------------------------------------------------------------

    def _do_expect(self, what: str, *words: str) -> None:
        """C{expect WHAT ...}: see L{Expectations}."""
        if self._group is None:
            raise ScriptFailed("a script begins with 'nodes'")
        Expectations(self._group).check(what, words)

    def _status(self, number: int, *, rewrite: bool) -> int:
        """Compare (or rewrite) the indented lines after C{status}."""
        reported = [f"    {line}" for line in self._cluster.describe().split(", ")]
        end = number
        while end < len(self._lines) and self._lines[end].startswith("    "):
            end += 1
        if not rewrite:
            expect_same("\n".join(self._lines[number:end]), "\n".join(reported), "status")
        self.printed.extend(reported)
        return end


def _ignore(_: DLedgerError) -> None:
    """A read that is refused leaves nothing to note."""


def _typed(settings: dict[str, str]) -> dict[str, object]:
    """Fields of a configuration given as text, converted to their types; fixed ones, too."""
    defaults = DLedgerConfig()
    return {name: converted(name, value, getattr(defaults, name)) for name, value in settings.items()}


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--rewrite", is_flag=True, help="Write the output of status into the scripts.")
def main(files: tuple[Path, ...], rewrite: bool) -> None:
    """Run scenario scripts."""
    failed = False
    for file in files:
        scenario = Scenario(file.read_text(), name=file.name)
        try:
            scenario.run(rewrite=rewrite)
        except ScriptFailed as error:
            failed = True
            click.echo(f"FAILED {error}")
            continue
        if rewrite:
            file.write_text("\n".join(scenario.printed) + "\n")
        click.echo(f"ok {file.name}")
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main(prog_name="python -m dledger.testing.group.scenario")
