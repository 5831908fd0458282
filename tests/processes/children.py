# -*- test-case-name: tests.processes.test_children -*-
"""
Child processes that end with the program that started them, and ports that no other program takes.

Rule 1: every child leads its own process group, and the kernel kills it when its parent dies; L{end_all}
(also run at exit) kills the remaining ones. The thread that starts a child must outlive it.
Rule 2: ports are below the range that the system uses for outgoing connections: otherwise a member that is
down could lose its port to a neighbour, or a neighbour that tries to reach it could be connected to itself.

Knows nothing of the work of the children.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import os
import queue
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.slowness import patient

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_ALIVE: set[Child] = set()
_GIVEN: set[int] = set()
#: One open file; a byte of it is locked for each port given away, visible to other programs like this one.
_RESERVED: list[IO[bytes]] = []


class ChildError(Exception):
    """A child did not behave as expected; the message ends with the last lines of its log."""


def prepare_child() -> None:
    """Runs in the child: it dies with its parent, and gets SIGINT and SIGHUP whoever started the tests."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A shell starts a command after "&" with SIGINT ignored, nohup with SIGHUP, and children inherit that.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _ephemeral_floor() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768


def free_ports(count: int) -> list[int]:
    """
    Loopback ports that are free and never used for outgoing connections.

    Ports are drawn at random, and reserved until this program ends: another program that runs at the same
    time does not take them, even if no process listens on them at the moment.
    """
    return [_free_port(()) for _port in range(count)]


def free_triple() -> int:
    """
    A port P for the clients of a broker, see L{free_ports}. P - 2 and P + 1 are free and reserved, too:
    RocketMQ's brokers listen on them, for the fast lane and for slaves.
    """
    return _free_port((-2, 1))


def _free_port(neighbours: Sequence[int]) -> int:
    """@param neighbours: of further ports, their distances."""
    chance = random.SystemRandom()
    ceiling = max(_ephemeral_floor(), 12_000)
    for _attempt in range(2000):
        port = chance.randrange(10_000, ceiling)
        ports = {port, *(port + distance for distance in neighbours)}
        if not ports & _GIVEN and all(map(_is_free, ports)) and all(map(_reserve, ports)):
            _GIVEN.update(ports)
            return port
    raise ChildError(f"no free port between 10000 and {ceiling}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Reserve the port. @return: false if another program has it."""
    if not _RESERVED:
        path = Path(tempfile.gettempdir()) / f"dledger-test-ports-{os.getuid()}"
        _RESERVED.append(open(path, "ab"))
    try:
        fcntl.lockf(_RESERVED[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def peers_text(peers: Mapping[str, str]) -> str:
    """Members as every program takes them: C{n0-host:port;n1-host:port}."""
    return ";".join(f"{peer_id}-{address}" for peer_id, address in peers.items())


def wait_until(
    condition: Callable[[], object], *, seconds: float, what: str, every: float = 0.02,
    notify: Callable[[], str] | None = None,
) -> None:
    """
    Poll until C{condition()} is true.

    @param seconds: on an idle machine, see L{patient}; so it is for all time limits here.
    @param notify: more text for the message, made when it is too late.
    @raise ChildError: it was not true within C{seconds}; the message names C{what}.
    """
    seconds = patient(seconds)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ChildError(f"not within {seconds:g} s: {what}" + (f"\n{notify()}" if notify else ""))
        time.sleep(every)


class Child:
    """
    One child process at a time, which can be started again with the same command.

    Invariant: while C{is_running}, the process is in L{end_all}'s table.

    @ivar name: for messages.
    @ivar command: the words of the next start; a test may change them.
    @ivar log_path: of its output; every start appends to it.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log_path: Path,
        environment: Mapping[str, str] | None = None, talks: bool = False,
    ) -> None:
        """@param talks: standard input and output are pipes, for commands and answers."""
        self.name = name
        self.log_path = log_path
        self.command = list(command)
        self._environment = dict(os.environ, **(environment or {}))
        self._talks = talks
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended (a paused child runs)."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """
        As of L{subprocess.Popen}: -9 after SIGKILL; None while it runs, or if it was not started.

        A JVM that got SIGTERM ends with 143.
        """
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process; its log is appended to."""
        assert not self.is_running, f"{self.name} runs already"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        pipe = subprocess.PIPE if self._talks else None
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=pipe or subprocess.DEVNULL, stdout=pipe or log, stderr=log,
                env=self._environment, start_new_session=True, preexec_fn=prepare_child,
            )
        _ALIVE.add(self)

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Its standard input and output, if C{talks} was set."""
        assert self._process is not None and self._process.stdin and self._process.stdout
        return self._process.stdin, self._process.stdout

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child and its children; do nothing if it has ended."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end of the process."""
        self.send(signal.SIGKILL)
        self._reap(10.0)

    def pause(self) -> None:
        """SIGSTOP."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def stop(self, *, seconds: float = 15.0) -> int:
        """
        SIGTERM, and wait for the end.

        @return: exit status.
        @raise ChildError: it did not end in time and was killed.
        """
        self.send(signal.SIGTERM)
        return self.wait(seconds=seconds)

    def wait(self, *, seconds: float) -> int:
        """
        Wait for the end of the process.

        @return: exit status.
        @raise ChildError: it did not end in time and was killed.
        """
        try:
            return self._reap(patient(seconds))
        except subprocess.TimeoutExpired:
            self.kill()
            late = f"{self.name} did not end within {patient(seconds):g} s"
            raise ChildError(f"{late}\n{self.log_tail()}") from None

    def _reap(self, seconds: float) -> int:
        if self._process is None:
            return 0
        status = self._process.wait(seconds)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        _ALIVE.discard(self)
        return status

    def rss_bytes(self) -> int:
        """Resident memory; 0 if it does not run."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, AssertionError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system; 0 if it does not run."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, AssertionError):
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        try:
            text = self.log_path.read_text(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(f"  {self.name}: {line}" for line in text.splitlines()[-lines:])


class TalkingChild(Child):
    """A process that answers each line of input with one line."""

    def __init__(
        self, name: str, command: Sequence[str], *, log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Its standard error goes to the log."""
        super().__init__(name, command, log_path=log_path, environment=environment, talks=True)
        self._answers: queue.Queue[str] = queue.Queue()

    def start(self) -> None:
        """Start the process without waiting for it, see L{wait_started}."""
        super().start()
        self._answers = queue.Queue()
        _commands, answers = self.pipes

        def pump(into: queue.Queue[str]) -> None:
            with contextlib.suppress(ValueError):
                for line in answers:
                    into.put(line.decode().rstrip("\n"))

        threading.Thread(target=pump, args=(self._answers,), daemon=True).start()

    def wait_started(self, *, seconds: float = 30.0) -> None:
        """@raise ChildError: its first line is not C{started}, or does not come."""
        got = self._next(seconds, "its start")
        if got != "started":
            raise ChildError(f"{self.name} said {got!r}, not 'started'\n{self.log_tail()}")

    def ask(self, line: str, *, seconds: float = 15.0) -> str:
        """
        Send one command and return its line of answer.

        @raise ChildError: no answer within C{seconds}, or the process has ended.
        """
        commands, _answers = self.pipes
        try:
            commands.write(line.encode() + b"\n")
            commands.flush()
        except (OSError, ValueError):
            raise ChildError(f"{self.name} does not take {line!r}\n{self.log_tail()}") from None
        return self._next(seconds, f"an answer to {line!r}")

    def _next(self, seconds: float, what: str) -> str:
        try:
            return self._answers.get(timeout=patient(seconds))
        except queue.Empty:
            late = f"{self.name}: {what} did not come within {patient(seconds):g} s"
            raise ChildError(f"{late}\n{self.log_tail()}") from None

    def stop(self, *, seconds: float = 15.0) -> int:
        """
        Send C{stop}, and wait for its end.

        @return: exit status.
        """
        if self.is_running:
            self.ask("stop", seconds=seconds)
        return self.wait(seconds=seconds)


def end_all() -> None:
    """Kill every running child."""
    for child in list(_ALIVE):
        with contextlib.suppress(Exception):
            child.kill()


atexit.register(end_all)


@contextlib.contextmanager
def ending(*children: Child) -> Iterator[None]:
    """Kill these children at the end of the block, also after an exception."""
    try:
        yield
    finally:
        for child in children:
            child.kill()
