# -*- test-case-name: tests.interop.test_name_server -*-
"""
Name servers of RocketMQ's kind, Java's and ours, the same requests to each of them, and C{mqadmin}.

Answers are compared as parsed documents: Java lists names in the order of its hash tables.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

import attrs

from dledger.rocketmq.answering.java_json import DataVersion, read_document
from dledger.rocketmq.namesrv.registrations import BrokerTopics, TopicQueues
from protocols.wire.framing import FrameBuffer
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from tests.interop.rocketmq import PATIENCE, Server, StartedChild, java_command
from tests.namesrv.support import header_of, registration_document
from tests.processes.children import ChildError, free_ports, wait_until
from tests.processes.members import ROOT

_TWISTD = "from twisted.scripts.twistd import run; run()"

#: Seconds without an answer after which a name server is silent: 4.9 does not answer an unknown code.
SILENCE_S = 2.0
#: A name server closes a connection without requests after 120 s, and a busy machine can need as long for one
#: command.
IDLE_S = 60.0

VERSIONS = {"4.9.8": "4.9", "5.3.3": "5.3"}


class OurNameServer(StartedChild):
    """C{twistd dledger-namesrv}."""

    def __init__(self, directory: Path, *words: str) -> None:
        (self.port,) = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        self._words = [
            sys.executable, "-c", _TWISTD, "-n", f"--pidfile={directory / 'namesrv.pid'}", "dledger-namesrv",
            "--listen", f"tcp:{self.port}:interface=127.0.0.1", "--kv", str(directory / "kvConfig.json"),
            *words,
        ]
        super().__init__(
            "namesrv", self._words, log_path=directory / "namesrv.log", environment={"PYTHONPATH": str(ROOT)}
        )

    def wait_started(self) -> None:
        """Until it listens."""
        wait_until(lambda: _listens(self.port), seconds=PATIENCE, what=f"{self.name} listens", every=0.05)


class JavaNameServer(Server):
    """Java's."""

    def __init__(self, directory: Path, version: str) -> None:
        (self.port,) = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        super().__init__(
            "java-namesrv", "namesrv.NamesrvStartup",
            {"listenPort": self.port, "kvConfigPath": directory / "java-kv.json"}, directory, version,
        )


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@attrs.frozen(kw_only=True)
class Said:
    """What is compared of an answer; C{code} is None for silence."""

    code: int | None
    remark: str | None = None
    fields: Mapping[str, str] = attrs.Factory(dict)
    body: object = None


class Asking:
    """One connection to a name server at a time: a new one after a while without a request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._last = 0
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE)
        self._frames = FrameBuffer()
        self._used = time.monotonic()

    def ask(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, version: int = 409,
        may_be_silent: bool = False,
    ) -> Said:
        """Send a request; wait for its answer."""
        if time.monotonic() - self._used > IDLE_S:
            self.close()
            self._connect()
        self._used = time.monotonic()
        self._last += 1
        self._socket.settimeout(SILENCE_S if may_be_silent else PATIENCE)
        self._socket.sendall(encode_command(RemotingCommand(
            code=code, opaque=self._last, version=version, language="JAVA", ext_fields=fields or {}, body=body
        )))
        while True:
            try:
                data = self._socket.recv(1 << 18)
            except TimeoutError:
                return Said(code=None)
            if not data:
                raise ChildError(f"the name server closed the connection at request {code}")
            for _form, frame in self._frames.feed(data):
                answer = decode_command(frame)
                assert answer.opaque == self._last
                return Said(code=answer.code, remark=answer.remark, fields=dict(answer.ext_fields),
                            body=(raw_shape(answer.body), normal(answer.body)))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def normal(body: bytes) -> object:
    """A body as a document whose lists are sorted."""
    if not body.startswith(b"{"):
        return body
    return _sorted(read_document(body))


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(one) for key, one in value.items()}
    if isinstance(value, list):
        return sorted(map(_sorted, value), key=lambda one: json.dumps(one, sort_keys=True))
    return value


def raw_shape(body: bytes) -> list[int]:
    """The bytes of a body without their order: equal for equal items in another order."""
    return sorted(body) if body.startswith(b"{") else []


def compressed(topics: Sequence[str], *, is_5: bool) -> bytes:
    """A compressed registration."""

    def piece(text: str) -> bytes:
        return struct.pack(">i", len(text.encode())) + text.encode()

    parts = [piece('{"counter":3,"timestamp":5}'), struct.pack(">i", len(topics)), *map(piece, topics),
             piece('["f1","f2"]')]
    return zlib.compress(b"".join(parts) + (struct.pack(">i", 0) if is_5 else b""))


def topics_of(*names: str, counter: int = 1, sys_flag: int = 0) -> bytes:
    """A registration of these topics."""
    return registration_document(BrokerTopics(
        version=DataVersion(timestamp=111, counter=counter, state_version=None),
        topics=dict.fromkeys(names, TopicQueues(read_queue_nums=4, write_queue_nums=4, sys_flag=sys_flag)),
    ))


def play(port: int, version: str) -> list[tuple[str, Said]]:
    """The same requests for every name server. @return: a label and the answer of each."""
    playing = _Play(port, is_5=version.startswith("5"))
    playing.values()
    playing.registrations()
    playing.other_forms()
    playing.administration()
    if playing.is_5:
        playing.requests_of_5()
    playing.changes_of_brokers()
    playing.ordered_topics()
    playing.end_of_a_connection()
    return playing.said


class _Play:
    """Each method asks, and keeps the answers."""

    def __init__(self, port: int, *, is_5: bool) -> None:
        self.is_5 = is_5
        self.said: list[tuple[str, Said]] = []
        self._port = port
        self._one = Asking(port)
        self._mine = {"brokerName": "bk", "brokerAddr": "127.0.0.1:1", "clusterName": "C", "brokerId": "0"}

    def ask(
        self, label: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *,
        number: int = 409, over: Asking | None = None,
    ) -> None:
        """One request. @param number: version of the sender."""
        self.said.append((f"{code} {label}", (over or self._one).ask(code, fields, body, version=number)))

    def values(self) -> None:
        """Nothing is there; the KV configuration."""
        self.ask("no such topic", 105, {"topic": "T"})
        for code in (106, 206, 304):
            self.ask("empty", code)
        self.ask("unknown cluster", 224, {"cluster": "zz"})
        # KV configuration
        self.ask("none", 219, {"namespace": "N"})
        self.ask("none", 101, {"namespace": "N", "key": "K"})
        self.ask("no key", 100, {"namespace": "N"})
        self.ask("put", 100, {"namespace": "N", "key": "K", "value": "Vü\n/\""})
        self.ask("there", 101, {"namespace": "N", "key": "K"})
        self.ask("there", 219, {"namespace": "N"})
        self.ask("remove", 102, {"namespace": "N", "key": "K"})
        self.ask("remove again", 102, {"namespace": "N", "key": "K"})
        self.ask("empty", 219, {"namespace": "N"})

    def registrations(self) -> None:
        """Brokers register, and routes show them."""
        self.ask("unknown", 322, self._mine, b'{"counter":1,"timestamp":111}')
        self.ask("master", 103, header_of(), topics_of("A", "B"))
        self.ask("slave", 103, header_of(address="127.0.0.1:2", broker_id=2), topics_of("A", "B"))
        self.ask("no body", 103, header_of(name="b2", address="127.0.0.1:3"))
        self.ask("wrong crc", 103, {**header_of(), "bodyCrc32": "5"}, topics_of("A", "B"))
        body = topics_of("A", "B")
        self.ask("right crc", 103, {**header_of(), "bodyCrc32": str(crc32(body) & 0x7FFFFFFF)}, body)
        for number in (0, 399, 400, 401, 479):
            self.ask(f"version {number}", 105, {"topic": "A"}, number=number)
        self.ask("strict", 105, {"topic": "A", "acceptStandardJsonOnly": "true"}, number=0)
        self.ask("same version, another topic", 103, header_of(), topics_of("A", "B", "A2"))
        self.ask("another topic", 105, {"topic": "A2"})
        self.ask("next version", 103, header_of(), topics_of("A", "B", "A2", counter=2, sys_flag=2))
        self.ask("next version", 105, {"topic": "A2"})
        for code in (106, 206, 304, 311, 312, 313):
            self.ask("two brokers", code)
        self.ask("cluster", 224, {"cluster": "C"})
        self.ask("same", 322, self._mine, b'{"counter":2,"timestamp":111}')
        self.ask("changed", 322, self._mine, b'{"counter":3,"timestamp":111}')

    def other_forms(self) -> None:
        """Compressed bodies, single topics, slaves without a master, strange names."""
        fields = {**header_of(name="z", address="127.0.0.1:5"), "compressed": "true"}
        body = compressed(["ZA 4 5 6 SINGLE_TAG", "ZB 4 5 6 SINGLE_TAG"], is_5=False)
        self.ask("compressed", 103, fields, body)
        self.ask("compressed", 105, {"topic": "ZA"})
        if self.is_5:
            fields = {**header_of(name="z5", address="127.0.0.1:6"), "compressed": "true"}
            body = compressed(['Z5 4 5 6 SINGLE_TAG {"a":"b c"}', "Z6 4 5 6 SINGLE_TAG"], is_5=True)
            self.ask("compressed by 5", 103, fields, body, number=479)
            self.ask("compressed by 5", 105, {"topic": "Z5"})
        self.ask("one topic", 103, header_of(name="one", address="127.0.0.1:8"), topics_of("ONE"))
        self.ask("one topic", 105, {"topic": "ONE"})
        # (Java's 5.3 keeps the name of the broker that it refused, without an address.)
        self.ask("two topics", 103, header_of(name="one", address="127.0.0.1:8"), topics_of("ONE", "TWO"))
        self.ask("two topics", 106)
        alone = header_of(name="sl", address="127.0.0.1:10", broker_id=3)
        self.ask("slave alone", 103, alone, topics_of("S1", "S2"))
        self.ask("slave alone", 105, {"topic": "S1"})
        acting = {**header_of(name="sm", address="127.0.0.1:11", broker_id=3), "enableActingMaster": "false"}
        self.ask("slave of 5 alone", 103, acting, topics_of("M1", "M2"))
        self.ask("slave of 5 alone", 105, {"topic": "M1"})
        strange = "ü/<('\"\\\x01\x7f\u2028😀é\x1f&\t"
        odd = header_of(name=strange, address="127.0.0.1:12", cluster="ç/C")
        self.ask("escapes", 103, odd, topics_of("E", "F/ü"))
        self.ask("escapes", 105, {"topic": "E"})
        self.ask("escapes", 105, {"topic": "E"}, number=0)
        self.ask("escapes", 206)

    def administration(self) -> None:
        """Permissions, deletion."""
        for code, name in ((205, "bk"), (205, "zz"), (327, "bk"), (327, "zz")):
            self.ask(name, code, {"brokerName": name})
            self.ask(f"after {code}", 105, {"topic": "A"})
        self.ask("delete", 216, {"topic": "B"})
        self.ask("delete again", 216, {"topic": "B"})
        self.ask("deleted", 105, {"topic": "B"})
        if self.is_5:
            self.ask("delete in another cluster", 216, {"topic": "A", "clusterName": "zz"})

    def changes_of_brokers(self) -> None:
        """A slave becomes the master, a broker stops."""
        self.ask("slave to master", 103, header_of(address="127.0.0.1:2"), topics_of("A", "B", counter=9))
        self.ask("slave to master", 105, {"topic": "A"})
        self.ask("other slave", 103, header_of(address="127.0.0.1:9", broker_id=1), topics_of("A", "B"))
        self.ask("unregister", 104, {**self._mine, "brokerAddr": "127.0.0.1:9", "brokerId": "1"})
        _settle(self._one, {"topic": "A"}, "127.0.0.1:9")
        self.ask("unregistered", 105, {"topic": "A"})

    def ordered_topics(self) -> None:
        """Ordered topics, and options."""
        self.ask("order", 100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "A", "value": "bk:4"})
        self.ask("order is off", 105, {"topic": "A"})
        self.ask("on", 318, {}, b"orderMessageEnable=true\n")
        self.ask("order is on", 105, {"topic": "A"})
        self.ask("shown to brokers", 103, header_of(address="127.0.0.1:2"), topics_of("A", "B", counter=9))
        self.ask("off", 318, {}, b"orderMessageEnable=false\n")
        self.ask("black list", 318, {}, b"kvConfigPath=x\n")

    def end_of_a_connection(self) -> None:
        """The brokers of a connection go with it."""
        other = Asking(self._port)
        fields = header_of(name="cl", address="127.0.0.1:20")
        self.ask("over another connection", 103, fields, topics_of("CL", "CM"), over=other)
        self.ask("before it ends", 105, {"topic": "CL"})
        other.close()
        _settle(self._one, {"topic": "CL"}, "127.0.0.1:20")
        self.ask("after it ended", 105, {"topic": "CL"})
        self.ask("after it ended", 106)
        self._one.close()

    def requests_of_5(self) -> None:
        """Codes that only 5.x has, and unknown ones."""
        queues = (b'{"queueDatas":[{"brokerName":"%s","perm":6,"readQueueNums":4,"topicSysFlag":0,'
                  b'"writeQueueNums":4}]}')
        self.ask("register", 217, {"topic": "R"}, queues % b"bk")
        self.ask("registered", 105, {"topic": "R"})
        self.ask("unknown broker", 217, {"topic": "R2"}, queues % b"zz")
        self.ask("unknown broker", 105, {"topic": "R2"})
        self.ask("members", 901, {"clusterName": "C", "brokerName": "bk"})
        self.ask("no members", 901, {"clusterName": "C", "brokerName": "zz"})
        self.ask("heartbeat", 904, self._mine)
        self.ask("unknown code", 9999)
        self.ask("controller", 1001)


def _settle(asking: Asking, fields: Mapping[str, str], address: str) -> None:
    """Until a route has lost an address: 5.3 removes brokers a moment later."""
    wait_until(lambda: address not in str(asking.ask(105, fields).body), seconds=PATIENCE,
               what=f"{address} is forgotten", every=0.1)


def mqadmin(version: str, directory: Path, address: str, *words: str) -> str:
    """
    Run C{mqadmin}; again if an answer was late: it waits 3 s for each, from its start with a cold JVM on. If
    the request has not left by then, it calls that a request that cannot be sent.

    @return: its output.
    @raise ChildError: it wrote of an exception, or every answer was late.
    """
    (directory / "conf" / "logback_tools.xml").write_text("<configuration/>")
    command = java_command(
        version, directory, "128m", "org.apache.rocketmq.tools.command.MQAdminStartup", *words
    )
    for _attempt in range(10):
        done = subprocess.run(
            command, capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, text=True,
            env={"NAMESRV_ADDR": address, "ROCKETMQ_HOME": str(directory), "PATH": "/usr/bin:/bin",
                 "JAVA_TOOL_OPTIONS": f"-Drocketmq.namesrv.addr={address}",
                 "JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS", "")},
        )
        said = done.stdout + done.stderr
        if not any(late in said for late in ("RemotingTimeoutException", "RemotingSendRequestException")):
            break
    if "Exception" in said:
        raise ChildError(f"mqadmin {' '.join(words)}: {said[-1500:]}")
    return said
