# -*- test-case-name: tests.processes.test_broker -*-
"""
Our brokers as real C{twistd} processes on loopback, and a plain blocking client for them.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from protocols.wire.framing import FrameBuffer
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from protocols.wire.rocketmq.message import Message, decode_message, decode_start
from tests.processes.children import Child, ChildError, wait_until
from tests.processes.members import ROOT
from tests.slowness import patient

_TWISTD = "from twisted.scripts.twistd import run; run()"

FILE_SIZE = 65_536
QUEUES = 4

SEND_MESSAGE_V2, PULL_MESSAGE = 310, 11
SENT = (0, 10, 11, 12)
FOUND, NOT_FOUND, NO_TOPIC = 0, 19, 17


class Remoting:
    """
    One connection. Every failure is an OSError.

    @ivar last: number of the last request.
    """

    def __init__(self, address: str, *, seconds: float = 20.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=seconds)
        self._frames = FrameBuffer()
        self._answers: list[RemotingCommand] = []
        self.last = 0

    def send(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
        """Send a request without waiting. @return: its number."""
        self.last += 1
        self._socket.sendall(encode_command(RemotingCommand(
            code=code, opaque=self.last, version=409, language="JAVA", ext_fields=fields, body=body
        )))
        return self.last

    def next(self) -> RemotingCommand:
        """The next answer."""
        while not self._answers:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._answers += [decode_command(frame) for _, frame in self._frames.feed(data)]
        return self._answers.pop(0)

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        """Send one request and wait for its answer."""
        number = self.send(code, fields, body)
        answer = self.next()
        assert answer.opaque == number, (answer.opaque, number)
        return answer

    def put(self, topic: str, queue_id: int, body: bytes, **properties: str) -> int:
        """Send a message with further properties without waiting. @return: the number of the request."""
        reported = {"KEYS": str(queue_id), "WAIT": "true", **properties}
        return self.send(SEND_MESSAGE_V2, {
            "a": "P", "b": topic, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0",
            "g": "1700000000000", "h": "0",
            "i": "\x02".join(f"{name}\x01{reported[name]}" for name in reported),
            "j": "0", "k": "false",
        }, body)

    def pull(self, topic: str, queue_id: int, offset: int) -> RemotingCommand:
        """The messages of a queue that are there now, if any."""
        return self.ask(PULL_MESSAGE, {
            "consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        })

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def messages_of(answer: RemotingCommand) -> list[Message]:
    """The messages in the answer to a pull."""
    found: list[Message] = []
    at = 0
    while at < len(answer.body):
        size = decode_start(answer.body, at).size
        found.append(decode_message(answer.body[at : at + size]))
        at += size
    return found


class Broker(Child):
    """
    One broker.

    @ivar address: C{host:port} for clients.
    @ivar store: its directory.
    """

    def __init__(
        self, name: str, directory: Path, *, role: str, port: int, master: Broker | None = None,
        options: Mapping[str, object] | None = None, extra: Sequence[str] = (),
        descriptors: int | None = None,
    ) -> None:
        """
        @param descriptors: soft and hard limit of open files; None: those of this process.
        @param options: configuration by name, beside files of L{FILE_SIZE} bytes.
        @param extra: further words of the command line.
        """
        self.store = directory / name
        self.port = port
        self.address = f"127.0.0.1:{port}"
        words = ["--role", role, "--store", str(self.store), "--name", "b", "--listen",
                 f"tcp:{port}:interface=127.0.0.1"]
        if master is not None:
            words += ["--ha-master", f"127.0.0.1:{master.port + 1}"]
        given = {"mapped_file_size_commit_log": FILE_SIZE, "mapped_file_size_consume_queue": 20_000,
                 **(options or {})}
        for option, value in given.items():
            words += ["--set", f"{option}={str(value).lower() if isinstance(value, bool) else value}"]
        limits = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
        super().__init__(
            name,
            [*limits, sys.executable, "-c", _TWISTD, "-n", "--pidfile=", "dledger-broker", *words, *extra],
            log_path=directory / f"{name}.log",
            environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )

    def wait_started(self, *, seconds: float = 60.0) -> None:
        """@raise ChildError: the broker does not answer in time, or the process has ended."""

        def answers() -> bool:
            if not self.is_running:
                raise ChildError(f"{self.name} ended at its start\n{self.log_tail()}")
            try:
                connection = Remoting(self.address, seconds=5.0)
            except OSError:
                return False
            with contextlib.suppress(OSError):
                return connection.ask(43, {}).code == 0
            return False

        wait_until(answers, seconds=seconds, what=f"{self.name} answers", every=0.1)

    def end(self, *, seconds: float = 60.0) -> None:
        """
        SIGTERM, and wait for a clean end.

        @raise ChildError: it had to be killed, or did not close its store.
        """
        status = self.stop(seconds=seconds)
        if status not in (0, -signal.SIGTERM) or (self.store / "abort").exists():
            raise ChildError(f"{self.name} ended with {status}\n{self.log_tail()}")

    def messages(self, topic: str, *, count: int = 0, seconds: float = 60.0) -> list[Message]:
        """
        All messages of a topic, queue by queue.

        @param count: wait until there are at least this many.
        @raise ChildError: there are fewer when the time is over.
        """
        deadline = time.monotonic() + patient(seconds)
        while True:
            try:
                found = self._pull_all(topic)
                if len(found) >= count:
                    return found
                problem = f"{self.name} has {len(found)} messages, not {count}\n{self.log_tail()}"
            except ChildError as error:  # a slave may have a topic before its messages
                problem = str(error)
            if time.monotonic() > deadline:
                raise ChildError(problem)
            time.sleep(0.1)

    def _pull_all(self, topic: str) -> list[Message]:
        connection = Remoting(self.address)
        found: list[Message] = []
        try:
            for queue_id in range(QUEUES):
                offset = 0
                while (answer := connection.pull(topic, queue_id, offset)).code == FOUND:
                    found += messages_of(answer)
                    offset = int(answer.ext_fields["nextBeginOffset"])
                if answer.code not in (NOT_FOUND, NO_TOPIC):
                    raise ChildError(f"{self.name}, queue {queue_id} at {offset}: "
                                     f"{answer.code} {answer.remark}\n{self.log_tail()}")
        finally:
            connection.close()
        return found

    def log(self, end: int) -> bytes:
        """The bytes of its commit log below C{end}."""
        files = sorted((self.store / "commitlog").iterdir())
        assert files[0].name == "0" * 20, files[0]
        return b"".join(path.read_bytes() for path in files)[:end]
