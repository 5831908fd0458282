# -*- test-case-name: tests.processes.test_demo_rocketmq -*-
"""
Three brokers on a raft log and a name server on this machine; the master is killed half-way, nothing is lost.

    make demo-rocketmq                          also with RocketMQ's producer and consumer, if there is a JDK
    python -m demo.rocketmq --no-java           without Java
    python -m demo.rocketmq --messages 100000

The brokers and the name server are C{twistd} processes on free ports of the loopback interface, in a
temporary directory. The producer asks the name server for the master, and has 32 messages under way. When the
master is killed, the outcome of those is unknown; the producer sends them again to the next one, as
RocketMQ's producers do. So a message may be there twice, and none may be missing. At the end all messages are
read from every broker, and the logs of the three are compared, byte for byte.
"""

from __future__ import annotations

import collections
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import attrs
import click
from rich.console import Console
from rich.table import Table

from tests.interop.java import JavaMissing
from tests.interop.rocketmq import Messages, class_path
from tests.processes.brokers import QUEUES, Remoting
from tests.processes.children import ChildError, end_all
from tests.processes.members import ended_well
from tests.processes.raft_brokers import Kept, RaftTrio

TOPIC = "demo"
WINDOW = 32
#: Without an answer for so long, the producer looks for another master.
SILENCE_S = 3.0
#: Longest time for all messages.
PATIENCE_S = 120.0
#: Version of RocketMQ's client, and the number of its messages.
CLIENT, JAVA_MESSAGES = "5.3.3", 200
STORED = 0
#: Larger files than those of tests: the demo sends more.
OPTIONS = {"mappedFileSizeCommitLog": 16 << 20, "mappedFileSizeConsumeQueue": 20 * 50_000}
console = Console()


class Lost(Exception):
    """The brokers lack messages, or differ; each argument is a sentence."""


@attrs.define
class Story:
    """The facts of the run, for the table at the end."""

    messages: int
    produce_seconds: float = 0.0
    killed: str = ""
    killed_at: int = 0
    failover_ms: float = 0.0
    again: int = 0
    doubled: int = 0


@attrs.frozen
class Place:
    """Where the broker said that a message is."""

    queue_id: int
    queue_offset: int


def body_of(number: int) -> bytes:
    """The body of a message."""
    return b"message %d" % number


class Producer:
    """
    Sends every message until it is acknowledged.

    @ivar places: number of each acknowledged message to its place.
    """

    def __init__(self, trio: RaftTrio, story: Story) -> None:
        self._trio = trio
        self._story = story
        self._todo = collections.deque(range(story.messages))
        self._killed_s = 0.0
        self.places: dict[int, Place] = {}

    def run(self) -> None:
        """
        Send all messages; the leader is killed half-way.

        @raise Lost: not all were acknowledged in time.
        """
        begin_s = time.monotonic()
        while self._todo:
            if time.monotonic() > begin_s + PATIENCE_S:
                raise Lost(f"{len(self._todo)} messages were not acknowledged within {PATIENCE_S:.0f} s")
            master = self._trio.master()
            if master is not None:
                with contextlib.suppress(OSError):
                    self._send_to(master)
            time.sleep(0.02)
        self._story.produce_seconds = time.monotonic() - begin_s

    def _send_to(self, master: str) -> None:
        connection = self._trio.brokers[master].connect(seconds=SILENCE_S)
        waiting: dict[int, int] = {}
        is_master = True
        try:
            while waiting or (self._todo and is_master):
                while self._todo and is_master and len(waiting) < WINDOW:
                    number = self._todo.popleft()
                    waiting[connection.last + 1] = number
                    connection.put(TOPIC, number % QUEUES, body_of(number))
                if not self._story.killed and len(self.places) >= self._story.messages // 2:
                    self._kill(master)
                is_master = self._took(connection, waiting, master) and is_master
        finally:
            self._story.again += len(waiting)
            self._todo.extendleft(sorted(waiting.values(), reverse=True))
            connection.close()

    def _took(self, connection: Remoting, waiting: dict[int, int], master: str) -> bool:
        """One answer of this broker. @return: whether the message is stored."""
        answer = connection.next()
        number = waiting.pop(answer.opaque)
        if answer.code != STORED:
            self._story.again += 1
            self._todo.append(number)
            return False
        self.places[number] = Place(int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"]))
        # What the killed one had answered already may still come.
        if self._killed_s and not self._story.failover_ms and master != self._story.killed:
            self._story.failover_ms = (time.monotonic() - self._killed_s) * 1000
            console.print(f"after {self._story.failover_ms:,.0f} ms another broker acknowledges messages")
            self._trio.brokers[self._story.killed].start()
            console.print(f"{self._story.killed} is started again")
        return True

    def _kill(self, master: str) -> None:
        self._story.killed, self._story.killed_at = master, len(self.places)
        self._trio.brokers[master].kill()
        self._killed_s = time.monotonic()
        console.print(f"message {len(self.places):,}: master [bold]{master}[/] killed with SIGKILL")


def judge(queues: list[list[Kept]], places: dict[int, Place]) -> int:
    """
    Compare the queues of the brokers with the acknowledged messages.

    @return: number of messages that are there more than once.
    @raise Lost: an acknowledged message is not at the place in its producer's answer, or a message is
        nobody's.
    """
    wrong = []
    counts: collections.Counter[bytes] = collections.Counter(kept.body for queue in queues for kept in queue)
    for number, place in places.items():
        queue = queues[place.queue_id]
        body = queue[place.queue_offset].body if place.queue_offset < len(queue) else None
        if body != body_of(number):
            wrong.append(f"message {number} is not at {place}: there is {body!r}")
    known = {body_of(number) for number in places}
    wrong += [f"nobody sent {body!r}" for body in counts if body not in known]
    if wrong:
        raise Lost(*wrong[:10])
    return sum(count - 1 for count in counts.values())


def show(story: Story, trio: RaftTrio, queues: list[list[Kept]]) -> None:
    """Print the tables at the end."""
    facts = Table(show_header=False, title="What happened", title_justify="left")
    facts.add_column()
    facts.add_column(justify="right")
    seconds = max(story.produce_seconds - story.failover_ms / 1000, 1e-9)
    for name, value in (
        ("messages acknowledged", f"{story.messages:,}"),
        ("per second, the fail-over not counted", f"{story.messages / seconds:,.0f}"),
        ("master killed", f"{story.killed} after {story.killed_at:,} messages"),
        ("fail-over: SIGKILL to the next acknowledgement", f"{story.failover_ms:,.0f} ms"),
        ("messages sent again", f"{story.again:,}"),
        ("... of those, there twice", f"{story.doubled:,}"),
    ):
        facts.add_row(name, value)
    brokers = Table(title="What is in the queues", title_justify="left")
    for column in ("broker", "role", *(f"queue {number}" for number in range(QUEUES))):
        brokers.add_column(column, justify="right")
    roles = {address: number for number, address in trio.route().items()}
    for peer_id, broker in trio.brokers.items():
        role = "master" if roles.get(f"127.0.0.1:{broker.port}") == "0" else "slave"
        brokers.add_row(peer_id, role, *(f"{len(queue):,}" for queue in queues))
    console.print(facts)
    console.print(brokers)
    console.print(
        f"[bold green]Nothing lost:[/] {story.messages:,} acknowledged messages at their places in the "
        "queues of three brokers, whose logs are byte for byte the same.", soft_wrap=True,
    )


def play_java(trio: RaftTrio, directory: Path) -> None:
    """
    RocketMQ's own producer and consumer at the same brokers; the master is killed between its messages.

    @raise Lost: a message did not come to the consumer.
    @raise ChildError: the producer or the brokers failed.
    """
    messages = Messages(trio.name_server_address, directory, CLIENT)
    messages.start()
    messages.wait_started(seconds=60)
    half = JAVA_MESSAGES // 2
    sent = messages.produce(0, half)
    master = trio.wait_master()
    trio.brokers[master].kill()
    console.print(f"Java: {half} messages acknowledged, then master [bold]{master}[/] killed with SIGKILL")
    begin_s = time.monotonic()
    sent += messages.produce(half, 1)
    console.print(f"Java: the next is acknowledged after {(time.monotonic() - begin_s) * 1000:,.0f} ms")
    sent += messages.produce(half + 1, JAVA_MESSAGES - half - 1)
    trio.brokers[master].start()
    seen, wrong = messages.received(JAVA_MESSAGES)
    messages.kill()
    if seen != JAVA_MESSAGES or wrong:
        raise Lost(f"RocketMQ's consumer has seen {seen} of {JAVA_MESSAGES} messages, {wrong} wrong")
    console.print(
        f"[bold green]Nothing lost:[/] RocketMQ's {CLIENT} consumer has seen all {len(sent)} messages of its "
        "producer.", soft_wrap=True,
    )


def find_java() -> bool:
    """Whether RocketMQ's client can be started here: a JDK, and its jars or Maven to fetch them."""
    if shutil.which("java") is None:
        return False
    try:
        with console.status("fetching RocketMQ's client"):
            class_path(CLIENT)
    except JavaMissing:
        return False
    return True


def play(directory: Path, count: int, *, with_java: bool) -> None:
    """
    The whole demo.

    @raise Lost: see L{Lost}.
    @raise ChildError: a process failed.
    """
    story = Story(messages=count)
    trio = RaftTrio(directory, options=OPTIONS)
    with console.status("starting a name server and three brokers"):
        master = trio.start()
    addresses = ", ".join(f"{peer_id} 127.0.0.1:{broker.port}" for peer_id, broker in trio.brokers.items())
    console.print(
        f"name server {trio.name_server_address}; three brokers: {addresses}; {master} is the master",
        soft_wrap=True,
    )
    producer = Producer(trio, story)
    with console.status("producing"):
        producer.run()
    with console.status("reading from every broker"):
        queues = trio.wait_same(TOPIC)
    story.doubled = judge(queues, producer.places)
    show(story, trio, queues)
    if with_java:
        play_java(trio, directory)
        trio.wait_same("numbers")
    with console.status("stopping the brokers"):
        for peer_id, status in trio.stop().items():
            if not ended_well(status):
                raise Lost(f"{peer_id} ended with status {status}\n{trio.brokers[peer_id].log_tail()}")


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


@click.command()
@click.option("--messages", type=click.IntRange(100, 2_000_000), default=20_000, show_default=True)
@click.option(
    "--java/--no-java", "with_java", default=None,
    help="RocketMQ's own producer and consumer, too; by default if there is a JDK and its jars can be had",
)
def main(messages: int, with_java: bool | None) -> None:
    """Produce, kill the leader, consume: prove that nothing is lost."""
    can_java = with_java is not False and find_java()
    if with_java and not can_java:
        raise click.ClickException(
            "no JDK, or Maven cannot fetch RocketMQ's jars: install both, or say --no-java"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="dledger-demo-", ignore_cleanup_errors=True) as name:
            with contextlib.ExitStack() as stack:
                stack.callback(end_all)
                signal.signal(signal.SIGINT, _interrupt)
                play(Path(name), messages, with_java=can_java)
        if with_java is None and not can_java:
            console.print("(With a JDK, RocketMQ's own producer and consumer do the same.)")
    except Lost as lost:
        console.print("[bold red]LOST[/]")
        for sentence in lost.args:
            console.print(sentence, markup=False, soft_wrap=True)
        sys.exit(1)
    except ChildError as error:
        console.print("[bold red]The demo could not be finished:[/]")
        console.print(str(error), markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted; the brokers are ended and the files removed")
        sys.exit(130)


if __name__ == "__main__":
    main(standalone_mode=True)
