# -*- test-case-name: tests.test_guard -*-
"""
The guard of the hot roads: the cost of one append, and of one put, in steps of the interpreter.

    python -m benchmarks.guard                        # compare; exit status 1 if a cost is above its bound
    python -m benchmarks.guard --write                # accept the present costs
    python -m benchmarks.guard --functions native-1   # where the steps of a road are

Times depend on the machine and on its load; these counts do not. A road runs in one process, on connections
and disks in memory (L{benchmarks.guard_rig}), and counts for each append, all members and clients together:

    calls     calls of our functions, and calls from them into C and libraries
    steps     bytecode instructions of our functions
    writes    writes to connections
    wire      bytes written to connections

Of a lone append it also counts the calls of each role: the leader's, one follower's, and the client's.

The inner work of libraries does not count, so that another version of Twisted changes nothing; neither does
work in C behind one call. The counts belong to one minor version of Python: the baseline has one entry for
each.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs
import click
from twisted.internet.protocol import Factory, Protocol

from benchmarks.common import console, table
from benchmarks.guard_rig import GROUP_NAME, PEERS, GuardGroup, WireEndpoint, Wires
from benchmarks.load import ROOT, RemotingFrames
from dledger.client.answers.values import AppendError
from dledger.client.client import LogClient

BASELINE = Path(__file__).with_name("guard.json")

#: A cost may exceed its baseline by this factor, and the calls of one role by the second one.
BOUND = 1.10
ROLE_BOUND = 1.05

#: The roles of a lone append, and their number.
ROLES = {"leader": 1, "follower": 2, "client": 1}

#: Our functions: files below these, and what attrs made for classes there.
_OURS = (f"{ROOT}/dledger/", f"{ROOT}/protocols/")
_GENERATED = ("<attrs generated", )

_BODY = b"x" * 100


class GuardError(Exception):
    """A road did not end as it should; the message says how."""


@attrs.frozen(kw_only=True)
class Cost:
    """What one append costs; see the module. C{roles}: calls by role; empty if a road has none."""

    calls: float
    steps: float
    writes: float
    wire: float
    roles: Mapping[str, float] = attrs.Factory(dict)

    def amounts(self) -> dict[str, float]:
        """What is counted, by name."""
        alone = attrs.asdict(self, filter=lambda field, _value: field.name != "roles")
        return {**alone, **{f"calls of the {role}": calls for role, calls in self.roles.items()}}


@attrs.define
class Counts:
    """
    Counts of a span.

    @ivar calls, steps: by role and function: calls of it and from it; its instructions.
    """

    calls: Counter[tuple[str, CodeType]] = attrs.Factory(Counter)
    steps: Counter[tuple[str, CodeType]] = attrs.Factory(Counter)


def _no_role() -> str:
    return ""


@contextmanager
def counting(role: Callable[[], str] = _no_role) -> Iterator[Counts]:
    """
    Count what our functions do inside the C{with} block, except in frames that run already.

    @param role: whose code runs.
    """
    found = Counts()
    calls, steps = found.calls, found.steps
    ours: dict[CodeType, bool] = {}

    def is_ours(code: CodeType) -> bool:
        known = ours.get(code)
        if known is None:
            known = ours[code] = code.co_filename.startswith((*_OURS, *_GENERATED))
        return known

    def in_frame(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "opcode":
            steps[role(), frame.f_code] += 1
        return in_frame

    def at_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        if is_ours(frame.f_code):
            calls[role(), frame.f_code] += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return in_frame
        caller = frame.f_back
        if caller is not None and is_ours(caller.f_code):
            calls[role(), caller.f_code] += 1
        return None

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "c_call" and is_ours(frame.f_code):
            calls[role(), frame.f_code] += 1

    previous = sys.gettrace(), sys.getprofile()
    gc.collect()
    gc.disable()  # (finalisers would run somewhere)
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for one such frame when a tracer is set
    sys.setprofile(profile)
    sys.settrace(at_call)
    try:
        yield found
    finally:
        sys.settrace(previous[0])
        sys.setprofile(previous[1])
        gc.enable()


# -- roads ------------------------------------------------------------------------------------------


class Road:
    """
    One road: L{once} makes C{window} appends, from the caller's bytes to the answers.

    @ivar window: appends that are outstanding together.
    """

    window: int

    def once(self) -> None:
        """Make C{window} appends. @raise GuardError: one was not acknowledged."""
        raise NotImplementedError

    def finish(self) -> None:
        """Do the work that the appends of some L{once} calls share."""

    def written(self) -> tuple[int, int]:
        """Writes, and bytes written, to connections so far."""
        return 0, 0

    def role(self) -> str:
        """Whose code runs, of L{ROLES}; empty: that is not known."""
        return ""


class NativeRoad(Road):
    """Our client over the native wire; eight calls share a window, as in L{benchmarks.client_load}."""

    def __init__(self, window: int, *, flush: str = "async", exactly_once: bool = False) -> None:
        self.window = window
        self._group = GuardGroup(flush=flush)
        self._wires = self._group.wires
        if window == 1:
            self.role = self._group.role  # type: ignore[method-assign]
        self._client = LogClient(
            PEERS, group=GROUP_NAME, reactor=self._wires.clock, wire="binary", exactly_once=exactly_once,
            endpoint_for=lambda address: WireEndpoint(self._wires, address),
        )
        self._calls = [(_BODY,) * (window // 8)] * 8 if window >= 8 else [(_BODY,)] * window
        self._acknowledged = 0

    def _settled(self, count: int, outcome: object) -> None:
        if isinstance(outcome, AppendError):
            raise GuardError(f"an append failed: {outcome}")
        self._acknowledged += count

    def once(self) -> None:
        self._acknowledged = 0
        for bodies in self._calls:
            self._client.submit(bodies, partial(self._settled, len(bodies)))
        self._wires.settle()
        if self._acknowledged != self.window:
            raise GuardError(f"{self._acknowledged} of {self.window} appends were acknowledged")

    def written(self) -> tuple[int, int]:
        return self._wires.writes, self._wires.bytes_written


class _Sender(Protocol):
    """A foreign client: its frames come from a template, so only the members' work counts."""

    def __init__(self) -> None:
        self.received = bytearray()

    def dataReceived(self, data: bytes) -> None:
        """Keep the answers."""
        self.received += data

    def connectionLost(self, reason: object = None) -> None:
        """The leader must not end it."""
        raise GuardError("the leader ended the connection")


class RemotingRoad(Road):
    """A client with Java's wire, an append in each frame, as in L{benchmarks.load}."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._group = GuardGroup()
        self._wires: Wires = self._group.wires
        leader_id = self._group.leader_id
        self._frames = RemotingFrames(group=GROUP_NAME, remote_id=leader_id, body=_BODY)
        made: list[_Sender] = []
        self._wires.connect(PEERS[leader_id], Factory.forProtocol(_Sender)).addCallback(made.append)
        self._sender = made[0]

    def once(self) -> None:
        data, _ids = self._frames.requests(self.window)
        transport: Any = self._sender.transport
        transport.write(data)
        self._wires.settle()
        problems = [problem for _opaque, problem in self._frames.answers(self._sender.received)]
        if problems != [""] * self.window:
            raise GuardError(f"{problems.count('')} of {self.window} appends were acknowledged")

    def written(self) -> tuple[int, int]:
        return self._wires.writes, self._wires.bytes_written


class PutRoad(Road):
    """
    Messages to a SYNC_MASTER whose slave reports at once; producer and slave are played. The eight lone puts
    of a measurement share one dispatch, as those of two milliseconds do.
    """

    def __init__(self, window: int) -> None:
        from protocols.wire.remoting import encode_command
        from tests.broker.send_support import Sending, send_of

        self.window = window
        # Without room for the largest message the plain road is not taken.
        self._broker = Sending(broker_role="SYNC_MASTER", store={"mapped_file_size_commit_log": 1 << 26})
        self._slave = self._broker.slave()
        self._client = self._broker.connect()
        # Prepared, and answers are not decoded, so that only the broker's work counts.
        self._sends = b"".join(encode_command(send_of(_BODY, opaque=one + 1)) for one in range(window))

    def once(self) -> None:
        client, transport = self._client, self._client.transport
        client.connection.dataReceived(self._sends)
        self._broker.report(self._slave)
        self._broker.clock.advance(0)
        answers = transport.value()
        transport.clear()
        if answers.count(b'{"code":') != self.window or answers.count(b'{"code":0,') != self.window:
            raise GuardError(f"the puts were answered {answers!r}")

    def finish(self) -> None:
        self._broker.settle()


ROADS: Mapping[str, Callable[[], Road]] = {
    "native-1": partial(NativeRoad, 1),
    "native-64": partial(NativeRoad, 64),
    "native-64-sync": partial(NativeRoad, 64, flush="sync"),
    "numbered-64": partial(NativeRoad, 64, exactly_once=True),
    "remoting-1": partial(RemotingRoad, 1),
    "remoting-64": partial(RemotingRoad, 64),
    "put-1": partial(PutRoad, 1),
    "put-64": partial(PutRoad, 64),
}


def measure(name: str) -> tuple[Cost, Counts, int]:
    """
    Run a road.

    @return: its cost, the counts by function, and the number of appends in them.
    @raise GuardError: it did not end as it should.
    """
    road = ROADS[name]()
    times = 8 if road.window == 1 else 1
    for _warm_up in range(times + 1):
        road.once()
    road.finish()
    before = road.written()
    with counting(road.role) as counts:
        for _time in range(times):
            road.once()
        road.finish()
    writes, wire = (late - early for late, early in zip(road.written(), before, strict=True))
    appends = times * road.window
    totals = {
        "calls": counts.calls.total(), "steps": counts.steps.total(), "writes": writes, "wire": wire
    }
    roles: Counter[str] = Counter()
    for (role, _code), number in counts.calls.items():
        roles[role] += number
    cost = Cost(
        **{what: round(total / appends, 3) for what, total in totals.items()},
        roles={one: round(roles[one] / number / appends, 3) for one, number in ROLES.items() if roles[one]},
    )
    return cost, counts, appends


# -- the baseline -----------------------------------------------------------------------------------


def version() -> str:
    """The minor version of this Python, which the counts belong to."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def read_baseline(path: Path = BASELINE) -> dict[str, Cost] | None:
    """The accepted cost of each road; None if there is none for this Python."""
    costs = json.loads(path.read_text()).get(version())
    return None if costs is None else {name: Cost(**cost) for name, cost in costs.items()}


def write_baseline(costs: Mapping[str, Cost], path: Path = BASELINE) -> None:
    """Accept C{costs} for this Python; roads that are not among them keep theirs."""
    document = json.loads(path.read_text()) if path.exists() else {}
    entry = document.setdefault(version(), {})
    entry.update({name: attrs.asdict(cost) for name, cost in costs.items()})
    document[version()] = {name: entry[name] for name in ROADS if name in entry}
    path.write_text(json.dumps(dict(sorted(document.items())), indent=1) + "\n")


def complaints(costs: Mapping[str, Cost], baseline: Mapping[str, Cost]) -> list[str]:
    """One sentence for each cost above its bound, and for each road without a baseline."""
    found = []
    for name, cost in costs.items():
        if name not in baseline:
            found.append(f"{name} has no baseline: python -m benchmarks.guard --write")
            continue
        accepted = baseline[name].amounts()
        for what, value in cost.amounts().items():
            bound = ROLE_BOUND if what.startswith("calls of ") else BOUND
            if value > accepted.get(what, 0.0) * bound:
                more = f", {value / accepted[what] - 1:+.0%}" if accepted.get(what) else ""
                found.append(
                    f"{name}: {value:g} {what} for each append{more}; the "
                    f"baseline is {accepted.get(what, 0.0):g}, and {bound - 1:.0%} more is allowed"
                )
    return found


def _shown(now: float, before: float | None) -> str:
    return f"{now:g}" if before is None or not before else f"{now:g} ({now / before - 1:+.1%})"


def show(costs: Mapping[str, Cost], baseline: Mapping[str, Cost]) -> None:
    """Print the costs, and how they differ from the baseline."""
    names = ["calls", "steps", "writes", "wire"]
    rows = []
    for name, cost in costs.items():
        now, before = cost.amounts(), baseline[name].amounts() if name in baseline else {}
        rows.append([name, *(_shown(now[what], before.get(what)) for what in names)])
        for what in [one for one in now if one not in names]:
            rows.append([f"  {name}, {what}", _shown(now[what], before.get(what)), "", "", ""])
    table("Cost of one append (and the difference from the baseline)", ["road", *names], rows)


def show_functions(name: str) -> None:
    """Print the functions of a road, the most expensive first; of a lone append, for each role."""
    _cost, counts, appends = measure(name)
    found: dict[tuple[str, str], list[float]] = {}
    for role, code in counts.calls.keys() | counts.steps.keys():
        where = code.co_filename.removeprefix(f"{ROOT}/").removesuffix(".py").replace("/", ".")
        sums = found.setdefault((role, f"{where}.{code.co_qualname}"), [0.0, 0.0])
        sums[0] += counts.steps[role, code] / appends / ROLES.get(role, 1)
        sums[1] += counts.calls[role, code] / appends / ROLES.get(role, 1)
    order = sorted(found, key=lambda one: (one[0], -found[one][0], one[1]))
    rows = [[*one, *(f"{value:.2f}" for value in found[one])] for one in order]
    table(f"Functions of {name}, for each append", ["role", "function", "steps", "calls"], rows)


@click.command()
@click.option("--write", is_flag=True, help="make the present costs the baseline of this version of Python")
@click.option("--functions", type=click.Choice([*ROADS]), help="show where the steps of one road are")
def main(write: bool, functions: str | None) -> None:
    """Compare the cost of the hot roads with the baseline."""
    if functions is not None:
        show_functions(functions)
        return
    costs = {name: measure(name)[0] for name in ROADS}
    baseline = read_baseline() if BASELINE.exists() else None
    show(costs, baseline or {})
    if write:
        write_baseline(costs)
        console.print(f"{BASELINE.name}: written for Python {version()}")
    elif baseline is None:
        console.print(f"Python {version()} has no baseline, so nothing was compared; see --write")
    elif found := complaints(costs, baseline):
        raise click.ClickException("\n".join(found))


if __name__ == "__main__":
    main()
