# -*- test-case-name: tests.commands.test_local,tests.processes.test_local -*-
"""
C{dledger local}: a whole group on this machine, for trying and for developing: members, or RocketMQ brokers
on a raft log with a name server. All of it is below one directory.

Rule 1: ports are chosen once, and kept in the directory, so addresses stay from start to start.
Rule 2: one process at a time uses a directory. All programs end with the command, however it ends.
Rule 3: a program that ends is started again, as a supervisor would do it, unless it ends by itself again and
again at its start.
Rule 4: commands in different directories take different ports, also when they start at the same time: one
chooses and starts at a time.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import click

from dledger.cli.console.command import replace_file, say, write_json_line
from dledger.cli.console.local_paths import LocalPath
from dledger.cli.console.signals import interrupted_by_sigterm
from dledger.cli.console.target import Target
from protocols.wire.fastjson import JsonObject

_HOST = "127.0.0.1"
#: Most members. More are no help to anybody on one machine.
MEMBERS_MAX = 9
#: First ports that are tried: of members, of their pages; of brokers, of members in them, of a name server.
_MEMBER_PORT, _PAGES_PORT = 20911, 8080
_BROKER_PORT, _INNER_PORT, _NAMES_PORT = 10911, 30911, 9876
_TRIED_PORTS = 2000
#: Seconds within which the group serves.
READY_S = 60.0
#: Seconds between two lines about what is waited for.
_SAID_S = 5.0
#: Seconds for a program to end by itself after SIGTERM.
_ENDED_S = 15.0
#: Seconds before a program is started again, and after which a start counts as one that went well.
_AGAIN_S, _STEADY_S = 1.0, 5.0
#: Starts that may end at once, one after the other.
_STARTS_MAX = 3
_POLL_S = 0.1
#: Lines of the log of a program that does not start.
_TAIL_LINES = 15
BROKER_GROUP = "broker-a"
_TWISTD = "from twisted.scripts.twistd import run; run()"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@attrs.frozen(kw_only=True)
class Plan:
    """
    What runs in a directory, and where it listens.

    @ivar kind: C{members} or C{brokers}.
    @ivar ports: of each member, by its id: its log; its pages, or its broker's port for clients.
    @ivar names_port: of the name server; 0: there is none.
    """

    kind: str
    ports: Mapping[str, tuple[int, int]]
    names_port: int = 0

    @property
    def peers(self) -> str:
        """As C{--peers} takes it."""
        return ";".join(f"{name}-{_HOST}:{port}" for name, (port, _) in self.ports.items())

    @property
    def group(self) -> str:
        """Name of the group."""
        return BROKER_GROUP if self.kind == "brokers" else "default"

    def listening(self) -> Iterator[tuple[str, int]]:
        """Each port that will be listened on, and who does."""
        for name, (first, second) in self.ports.items():
            yield name, first
            yield name, second
            if self.kind == "brokers":
                yield name, second - 2
        if self.names_port:
            yield "the name server", self.names_port


@attrs.define
class Program:
    """
    One program of the group.

    @ivar words: its command. @ivar log: the file of its log.
    """

    name: str
    words: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    short_starts: int = 0
    is_given_up: bool = False

    def start(self) -> None:
        """Start it. It ends when this process does."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        self.started_s = time.monotonic()

    def look(self) -> str:
        """Start it again if it has ended. @return: a sentence about that; empty: nothing has happened."""
        status = None if self.process is None else self.process.poll()
        if status is None or self.is_given_up:
            return ""
        lived_s = time.monotonic() - self.started_s
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        is_own = lived_s < _STEADY_S and status != -signal.SIGKILL
        self.short_starts = self.short_starts + 1 if is_own else 0
        if self.short_starts >= _STARTS_MAX:
            self.is_given_up = True
            return f"{self.name} ends at each start, {how}: see the end of {self.log}"
        time.sleep(_AGAIN_S)
        self.start()
        assert self.process is not None
        return f"{self.name} was ended {how}, and is started again (process {self.process.pid})"

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


class _Ports:
    """Chooses free ports, each once."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def choose(self, first: int, *distances: int) -> int:
        """The first port from C{first} on that is free, with those at these distances from it."""
        for port in range(first, first + _TRIED_PORTS):
            wanted = {port, *(port + distance for distance in distances)}
            if not wanted & self._given and all(map(_is_free, wanted)):
                self._given |= wanted
                return port
        raise click.ClickException(f"no port from {first} to {first + _TRIED_PORTS - 1} is free")


def _names(members: int) -> list[str]:
    return [f"n{number}" for number in range(members)]


def new_plan(kind: str, members: int) -> Plan:
    """A plan with free ports."""
    ports = _Ports()
    names = _names(members)
    if kind == "brokers":
        return Plan(
            kind=kind, names_port=ports.choose(_NAMES_PORT),
            ports={name: (ports.choose(_INNER_PORT), ports.choose(_BROKER_PORT, -2)) for name in names},
        )
    return Plan(
        kind=kind, ports={name: (ports.choose(_MEMBER_PORT), ports.choose(_PAGES_PORT)) for name in names}
    )


def kept_plan(path: Path, kind: str, members: int | None) -> Plan:
    """
    The plan of a directory. A new one is made, and kept there.

    @param members: number of members; None: those that are there, or three.
    @raise ClickException: another kind or number is there; a port is taken; the file is not sound.
    """
    if not path.exists():
        plan = new_plan(kind, members or 3)
        replace_file(path, json.dumps(attrs.asdict(plan), indent=1) + "\n")
        return plan
    try:
        document = json.loads(path.read_text("utf-8"))
        ports = {str(name): (int(first), int(second)) for name, (first, second) in document["ports"].items()}
        plan = Plan(kind=str(document["kind"]), names_port=int(document["names_port"]), ports=ports)
        if [*ports] != _names(len(ports)) or not 1 <= len(ports) <= MEMBERS_MAX:
            raise ValueError(f"its members are {[*ports]}")
        if wrong := [port for _, port in plan.listening() if not 0 < port < 1 << 16]:
            raise ValueError(f"port {wrong[0]}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise click.ClickException(
            f"{path} is not sound ({error}): move it away, and ports are chosen anew") from None
    found = f"{len(plan.ports)} {plan.kind}"
    if plan.kind != kind or (members is not None and members != len(plan.ports)):
        raise click.ClickException(
            f"{path.parent} has {found}: start it as such, or name another directory with --dir"
        )
    for name, port in plan.listening():
        if not _is_free(port):
            raise click.ClickException(f"port {port} of {name} is taken by another program: end that one, or "
                                       "name another directory with --dir")
    return plan


def programs_of(plan: Plan, directory: Path, settings: Sequence[str]) -> list[Program]:
    """The programs of a plan. @param settings: C{name=value} for each member or broker."""

    def program(name: str, *words: str) -> Program:
        home = directory / name
        home.mkdir(exist_ok=True)
        command = (sys.executable, "-c", _TWISTD, "-n", "--pidfile=", *words)
        return Program(name, command, home / "log")

    more = [word for setting in settings for word in ("--set", setting)]
    made = []
    if plan.names_port:
        made.append(program("namesrv", "dledger-namesrv", "--listen", _endpoint(plan.names_port),
                            "--kv", str(directory / "namesrv" / "kvConfig.json")))
    for name, (_, second) in plan.ports.items():
        if plan.kind == "members":
            made.append(program(
                name, "dledger", "--node-id", name, "--peers", plan.peers, "--store", str(directory / name),
                "--admin", _endpoint(second), *more,
            ))
            continue
        configuration = directory / name / "broker.conf"
        broker = program(name, "dledger-broker", "--config", str(configuration), "--listen",
                         _endpoint(second), *more)
        replace_file(configuration, "".join(f"{key}={value}\n" for key, value in {
            "brokerClusterName": "local", "brokerName": BROKER_GROUP, "brokerIP1": _HOST,
            "listenPort": second, "namesrvAddr": f"{_HOST}:{plan.names_port}",
            "storePathRootDir": directory / name / "store", "enableDLegerCommitLog": "true",
            "dLegerGroup": BROKER_GROUP, "dLegerSelfId": name, "dLegerPeers": plan.peers,
            "mappedFileSizeCommitLog": 64 << 20, "diskMaxUsedSpaceRatio": 95,
        }.items()))
        made.append(broker)
    return made


def _endpoint(port: int) -> str:
    return f"tcp:{port}:interface={_HOST}"


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """@raise ClickException: another process has the directory."""
    with open(directory / "lock", "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(f"another dledger local uses {directory}: end it first") from None
        yield


@contextmanager
def _alone() -> Iterator[None]:
    """
    Until the end of this, no other command of this user chooses ports, or starts programs.

    @raise ClickException: another one takes too long.
    """
    path = Path(tempfile.gettempdir()) / f"dledger-local-{os.getuid()}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise click.ClickException(f"{path} is not a file of this user ({error.strerror}): remove it, or set "
                                   "TMPDIR to a directory of your own") from None
    try:
        deadline_s, is_said = time.monotonic() + 2 * READY_S, False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise click.ClickException(f"another dledger local has {path} locked") from None
            if not is_said:
                say("waiting until another dledger local has started")
                is_said = True
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _wait_serving(plan: Plan, programs: Sequence[Program]) -> None:
    """
    Wait until the group has a leader, and all members are healthy.

    @raise ClickException: a program ends, or it takes too long.
    """
    began_s, problem, next_s = time.monotonic(), "", _SAID_S
    target = Target(peers=plan.peers, group=plan.group, timeout=2.0, wire="auto")
    with target.open() as log:
        while (passed_s := time.monotonic() - began_s) < READY_S:
            for one in programs:
                if one.process is not None and one.process.poll() is not None:
                    raise click.ClickException(f"{one.name} does not start:\n{one.tail()}")
            infos = log.status()
            problems = [f"{one.member_id}: {why}" for one in infos if (why := one.problem or one.health)]
            if not problems and any(one.role == "leader" for one in infos):
                return
            problem = problems[0] if problems else "no member leads"
            if passed_s >= next_s:
                next_s += _SAID_S
                say(f"waiting for {passed_s:.0f} s: {problem}")
            time.sleep(_POLL_S)
    raise click.ClickException(f"the group does not serve after {READY_S:.0f} s: {problem}")


def _end(programs: Sequence[Program]) -> None:
    processes = [one.process for one in programs if one.process is not None]
    for process in processes:
        process.terminate()
    deadline_s = time.monotonic() + _ENDED_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _document(plan: Plan, programs: Sequence[Program], directory: Path) -> JsonObject:
    """What is there, for programs."""
    pids = {one.name: one.process.pid for one in programs if one.process is not None}
    members: list[JsonObject] = []
    for name, (port, second) in plan.ports.items():
        home = directory / name
        of_kind = {"broker": f"{_HOST}:{second}"} if plan.kind == "brokers" else {
            "admin": f"http://{_HOST}:{second}", "directory": str(home / f"dledger-{name}"),
        }
        members.append({
            "id": name, "address": f"{_HOST}:{port}", "pid": pids[name], "log": str(home / "log"), **of_kind,
        })
    namesrv = f"{_HOST}:{plan.names_port}" if plan.names_port else ""
    return {"peers": plan.peers, "group": plan.group, "namesrv": namesrv, "members": members}


def _sentences(plan: Plan, document: JsonObject) -> Iterator[str]:
    """The same for people, and the next commands."""
    members = document["members"]
    assert isinstance(members, list)
    for one in members:
        pages = f"pages {one['admin']}" if "admin" in one else f"for clients {one['broker']}"
        yield f"{one['id']}  {one['address']}  {pages}  process {one['pid']}  log {one['log']}"
    yield ""
    if plan.kind == "brokers":
        yield f"Name server for RocketMQ's clients: {document['namesrv']}"
        yield "In another terminal:"
        yield f"    dledger --peers '{plan.peers}' --group {plan.group} status"
        yield f"    mqadmin clusterList -n {document['namesrv']}"
    else:
        yield "In another terminal:"
        yield f"    export DLEDGER_PEERS='{plan.peers}'"
        yield "    dledger append hello world"
        yield "    dledger tail --from 0"
        yield "    dledger dashboard    # the whole group in a browser; the pages above show one member each"
        yield f"In a program:  dledger.connect({plan.peers!r}, exactly_once=True)"
        yield f"Spark:         spark.read.format('dledger').option('bootstrap', '{plan.peers}').load()"
    yield "A member that is killed is started again: kill -9 its process, and see what your program does."
    yield "Ctrl-C ends all. The data stay; the same command goes on with them."


_SHELL = """
import os, dledger.spark
spark = dledger.spark.session()
log = spark.read.format("dledger").option("bootstrap", os.environ["DLEDGER_PEERS"]).load()
log.createOrReplaceTempView("log")
print("spark: the session; log: a view and a DataFrame of the entries. Try:")
print("    spark.sql('SELECT count(*), max(index) FROM log').show()")
"""


def _run_prompt(plan: Plan) -> None:
    """A Python prompt with Spark, until it ends."""
    environment = {**os.environ, "DLEDGER_PEERS": plan.peers}
    say("starting Spark: ten seconds, more on a busy machine")
    subprocess.run([sys.executable, "-i", "-c", _SHELL], env=environment, check=False)


def _watch(programs: Sequence[Program], notify: Callable[[str], None]) -> None:
    """Start again what ends, until a signal comes."""
    while True:
        for one in programs:
            sentence = one.look()
            if sentence:
                notify(sentence)
        time.sleep(_POLL_S)


@click.command()
@click.option("--dir", "directory", type=LocalPath(file_okay=False, path_type=Path),
              default=Path("dledger-local"), show_default=True, metavar="DIR",
              help="Ports, logs and data. It is made if it is not there.")
@click.option("--members", type=click.IntRange(1, MEMBERS_MAX), default=None, metavar="N",
              help="Number of members or brokers. [default: 3, or those that DIR has]")
@click.option("--rocketmq", is_flag=True, help="RocketMQ brokers on a raft log, and a name server.")
@click.option("--spark", is_flag=True, help="A Python prompt with Spark on the log; all ends with it.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE",
              help="An option of each member or broker; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON when the group serves.")
def local(
    directory: Path, members: int | None, rocketmq: bool, spark: bool, settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """
    Run a whole group on this machine until Ctrl-C, for trying and for developing.

    Everything is on the loopback interface, and below one directory: the same command goes on with the same
    data and addresses. A program that is killed is started again.
    """
    if spark and rocketmq:
        raise click.UsageError("--spark reads the log of members: leave --rocketmq out")
    if spark and importlib.util.find_spec("pyspark") is None:
        raise click.ClickException("--spark needs PySpark: pip install 'dledger[spark]'")
    directory = directory.resolve()
    with ExitStack() as ends, interrupted_by_sigterm():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            ends.enter_context(_locked(directory))
            with _alone():
                plan = kept_plan(directory / "local.json", "brokers" if rocketmq else "members", members)
                programs = programs_of(plan, directory, settings)
                ends.callback(_end, programs)
                say(f"starting {len(programs)} programs below {directory}")
                for one in programs:
                    one.start()
                _wait_serving(plan, programs)
            document = _document(plan, programs, directory)
            if as_json:
                write_json_line(document)
            else:
                click.echo("\n".join(_sentences(plan, document)))
            if spark:
                _run_prompt(plan)
            else:
                _watch(programs, say)
        except KeyboardInterrupt:
            say("ending all")
        except OSError as error:
            what = error.filename or directory
            raise click.ClickException(f"{what} cannot be used ({error.strerror}): mend that, or name "
                                       "another directory with --dir") from None
