# -*- test-case-name: tests.test_benchmarks -*-
"""The measurements beside peers: frames, programs, turns, tables. No peer need be installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from benchmarks import append, common, peer_groups, peers, reads, table
from benchmarks.__main__ import PROGRAMS
from benchmarks.append import Cell, Measured, Plan, measure_all
from benchmarks.common import Machine
from benchmarks.groups import KNOWN, MeasuredGroup, make_groups
from benchmarks.load import ROOT, Frames, Link, LoadError, Meter, Sample, shares_of
from benchmarks.peer_load import NatsFrames, RedisFrames, put_request
from benchmarks.peer_read import NatsMessages, fields_of, watch_request
from benchmarks.peers import PEERS, MissingPeerError, find_program, promise_of, version_in
from tests.processes.children import Child

MACHINE = Machine(
    processors=2, model="X", memory_gib=8.0, system="Linux 6", python="3.11.2", directory="d",
    fdatasync_p50_ms=0.2, fdatasync_p99_ms=0.4, load_average=0.1, call_ns=200.0,
)


def in_bytes(frames: Frames, data: bytes) -> list[tuple[int, str]]:
    """The answers in C{data}, which comes in reads of one byte."""
    received, found = bytearray(), []
    for byte in data:
        received.append(byte)
        found += list(frames.answers(received))
    return found


class NatsFramesTests(SynchronousTestCase):
    """The text protocol of NATS."""

    def test_requests(self) -> None:
        """Each publication has its own inbox and its length."""
        frames = NatsFrames(b"a\r\nb", "a")
        data, ids = frames.requests(2)
        self.assertEqual(data, b"PUB bench a.0 4\r\na\r\nb\r\nPUB bench a.1 4\r\na\r\nb\r\n")
        self.assertEqual((ids, frames.requests(1)[1]), ([(0, 1), (1, 1)], [(2, 1)]))

    def test_answers(self) -> None:
        """Acknowledgements and refusals, in any cuts; what else the server says is passed over."""
        stored, refused = b'{"stream":"bench","seq":7}', b'{"error":{"code":503}}'
        data = b"INFO {}\r\n" + b"".join(
            b"MSG a.%d 1 %d\r\n%s\r\n" % (number, len(text), text)
            for number, text in ((5, stored), (4, refused))
        )
        self.assertEqual(in_bytes(NatsFrames(b""), data), [(5, ""), (4, refused.decode())])

    def test_own_inboxes(self) -> None:
        """Each connection has its own, or what an earlier run left outstanding would count."""
        openings = {NatsFrames(b"x").opening for _time in range(10)}
        self.assertEqual(len(openings), 10)
        frames = NatsFrames(b"x", "own")
        self.assertIn(b"SUB own.* 1\r\n", frames.opening)
        self.assertIn(b" own.0 ", frames.requests(1)[0])

    def test_ping(self) -> None:
        """It is answered with the next request."""
        frames = NatsFrames(b"x")
        self.assertEqual(in_bytes(frames, b"PING\r\n"), [])
        self.assertTrue(frames.requests(1)[0].startswith(b"PONG\r\nPUB "))
        self.assertTrue(frames.requests(1)[0].startswith(b"PUB "))

    def test_error(self) -> None:
        """An error of the connection ends the run."""
        with self.assertRaises(LoadError):
            in_bytes(NatsFrames(b""), b"-ERR 'Unknown Protocol Operation'\r\n")


class PeerReadTests(SynchronousTestCase):
    """Readers of peers count entries, and nothing else."""

    def fed(self, data: bytes) -> NatsMessages:
        """The count after bytes that come one by one."""
        messages = NatsMessages()
        for byte in data:
            messages.feed(bytes([byte]))
        return messages

    def test_nats_messages_are_counted(self) -> None:
        """Those of the stream, also with a line end in the body; no answer, no signs of life."""
        body = b"a\r\nMSG bench 1 x 1\r\n"
        data = b"INFO {}\r\nMSG answer 2 2\r\n{}\r\n" + 3 * (
            b"MSG bench 1 $JS.ACK.bench.c.1.1.1.9.9 %d\r\n%s\r\n" % (len(body), body)
        )
        status = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
        data += b"HMSG in 1 $JS.FC.c 36 36\r\n%s\r\n" % status
        messages = self.fed(data + b"PING\r\n")
        self.assertEqual((messages.count, bytes(messages.replies)), (3, b"PUB $JS.FC.c 0\r\n\r\nPONG\r\n"))

    def test_nats_errors_are_shown(self) -> None:
        """Of the connection, and of the request for the consumer."""
        error = b'{"error":{"code":400}}'
        for data in (b"-ERR 'no'\r\n", b"MSG answer 2 %d\r\n%s\r\n" % (len(error), error)):
            with self.assertRaises(LoadError):
                self.fed(data)

    def test_etcd_events_are_counted(self) -> None:
        """The fields of an answer by their numbers, whatever their sizes."""
        answer = b"\x0a\x02ab" + b"\x10\xac\x02" + 2 * (b"\x5a\xac\x02" + bytes(300))
        self.assertEqual([*fields_of(answer)], [(1, 2), (2, 0), (11, 2), (11, 2)])
        with self.assertRaises(ValueError):
            [*fields_of(b"\x0d1234")]
        self.assertEqual(watch_request(), b"\x0a\x08\x0a\x01\0\x12\x01\0\x18\x01")

    def test_ratios_are_to_our_batches(self) -> None:
        """Round by round; the median of them is shown."""
        rows = [
            {"system": system, "round": turn, "entries": entries, "seconds": 1.0}
            for turn in range(3) for system, entries in (("dledger, batches", 400), ("nats 2", 100 + turn))
        ]
        with common.console.capture() as shown:
            reads.show(rows)
        self.assertIn("0.25x", shown.get())


class RedisFramesTests(SynchronousTestCase):
    """The protocol of Redis."""

    def test_requests(self) -> None:
        """Additions, and one WAIT after them for all."""
        data, ids = RedisFrames(b"body").requests(3)
        self.assertEqual((data.count(b"$4\r\nXADD\r\n"), data.count(b"$4\r\nbody\r\n")), (3, 3))
        self.assertTrue(data.endswith(b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n0\r\n"))
        self.assertEqual(ids, [(1, 3)])

    def test_answers(self) -> None:
        """The answer to WAIT counts; an error before it, or no replica, is a refusal."""
        frames = RedisFrames(b"x")
        for _time in range(3):
            frames.requests(1)
        added = b"$3\r\n1-0\r\n"
        found = in_bytes(frames, added + b":2\r\n" + b"-OOM no room\r\n:2\r\n" + added + b":0\r\n")
        self.assertEqual(found, [(1, ""), (2, "OOM no room"), (3, "no replica acknowledged")])


class FakeSocket:
    """Answers are put in by the test."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.answers: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        """Remember."""
        self.sent.append(data)

    def recv(self, _size: int) -> bytes:
        """The next answer."""
        return self.answers.pop(0)


class LinkTests(SynchronousTestCase):
    """One connection keeps its share of the window outstanding."""

    def test_window(self) -> None:
        """As many are sent again as were answered; refusals are counted."""
        end, meter = FakeSocket(), Meter(begin_s=0.0, end_s=1e12)
        link = Link(NatsFrames(b"x"), end, 4)  # type: ignore[arg-type]
        link.fill()
        link.fill()
        self.assertEqual([data.count(b"PUB") for data in end.sent], [4])
        end.answers = [b'MSG a.0 1 9\r\n{"seq":1}\r\nMSG a.2 1 11\r\n{"error":1}\r\n', b""]
        link.read(meter)
        link.fill()
        self.assertEqual([data.count(b"PUB") for data in end.sent], [4, 2])
        sample = meter.sample()
        self.assertEqual((sample.acknowledged, sample.refused, len(link.sent)), (1, 1, 4))
        with self.assertRaises(LoadError):
            link.read(meter)

    def test_shares(self) -> None:
        """The whole window, and no connection without a share."""
        self.assertEqual([shares_of(64, 2), shares_of(5, 2), shares_of(1, 2)], [[32, 32], [3, 2], [1]])

    def test_put(self) -> None:
        """A message of protocol buffers with two fields of bytes."""
        self.assertEqual(put_request(b"k", b"v"), b"\x0a\x01k\x12\x01v")
        self.assertEqual(put_request(b"k", b"v" * 300)[3:6], b"\x12\xac\x02")


def _find_nothing(*_arguments: object, **_options: object) -> None:
    return None


class ProgramTests(SynchronousTestCase):
    """Peers that are not installed."""

    def test_package(self) -> None:
        """The message names the program and Debian's package."""
        self.patch(peers.shutil, "which", _find_nothing)
        for peer in PEERS.values():
            with self.assertRaises(MissingPeerError) as caught:
                find_program(peer)
            words = f"needs the program {peer.program}: apt-get install {peer.package}"
            self.assertIn(words, str(caught.exception))

    def test_version(self) -> None:
        """A program that is too old is named with both versions; a newer one is taken."""
        said = "nats-server: v2.9.10\n"

        def run(*_arguments: object, **_options: object) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess([], 0, stdout=said, stderr="")

        self.patch(peers.shutil, "which", lambda *_arguments, **_options: "/bin/nats-server")
        self.patch(peers.subprocess, "run", run)
        with self.assertRaises(MissingPeerError) as caught:
            find_program(PEERS["nats-always"])
        self.assertIn("needs nats-server 2.11 or newer", str(caught.exception))
        self.assertIn("is 2.9.10", str(caught.exception))
        self.assertEqual(find_program(PEERS["nats"]), ("/bin/nats-server", "2.9.10"))
        said = "nats-server: v2.11.0\n"
        self.assertEqual(find_program(PEERS["nats-always"])[1], "2.11.0")

    def test_versions(self) -> None:
        """Of the three programs."""
        self.assertEqual(version_in("etcd Version: 3.4.23\nGit SHA: Not provided\nGo 1.19"), (3, 4, 23))
        self.assertEqual(version_in("Redis server v=7.0.15 sha=00000000:0"), (7, 0, 15))
        with self.assertRaises(MissingPeerError):
            version_in("none")

    def test_module(self) -> None:
        """A generator without its library."""
        self.patch(peers.shutil, "which", lambda *_arguments, **_options: "/bin/etcd")
        self.patch(peers.importlib.util, "find_spec", _find_nothing)
        with self.assertRaises(MissingPeerError) as caught:
            find_program(PEERS["etcd"])
        self.assertIn("pip install '.[bench]'", str(caught.exception))

    def test_named(self) -> None:
        """A peer that was asked for is an error before anything starts; so is an unknown one."""
        self.patch(peers.shutil, "which", _find_nothing)
        self.patch(append, "measure_all", None)
        for names, words in (("redis", "apt-get install redis-server"), ("kafka", "kafka is no peer")):
            result = CliRunner().invoke(append.main, ["--flush", "", "--peers", names])
            self.assertEqual(result.exit_code, 2, result.output)
            self.assertIn(words, result.output)

    def test_default(self) -> None:
        """One that was not asked for by name is reported as absent."""
        self.patch(peers.shutil, "which", _find_nothing)
        made, absent = make_groups(Path(self.mktemp()), peers=["redis", "etcd"], flushes=[])
        self.assertEqual((made, [one.name for one in absent]), ([], ["redis", "etcd"]))

    def test_promises(self) -> None:
        """Every system that can be in a table reports its operation and its durability."""
        systems = [("dledger-binary", "async"), ("dledger-remoting", "sync"), ("dledger-binary-tls", "async"),
                   ("java-dledger", "async"), ("java-dledger-batch", "async"), ("pysyncobj", "async")]
        for system, flush in [*systems, *((peer.name, peer.flush) for peer in PEERS.values())]:
            operation, durability = promise_of(system, flush)
            self.assertTrue(operation and durability)
            self.assertEqual("fsync on" in durability, flush == "sync", system)
        self.assertLess({*PEERS}, {*KNOWN})


class ServerTests(SynchronousTestCase):
    """The command lines of three servers."""

    def setUp(self) -> None:
        self.patch(peer_groups, "find_program", lambda peer: (f"/bin/{peer.program}", "9.9"))

    def test_own_places(self) -> None:
        """Each server has its own ports and directory; no two groups share any."""
        at = Path(self.mktemp())
        made = [peer_groups.make_peer(name, at) for name in PEERS]
        ports = [port for group in made for own in group._ports for port in own]
        self.assertEqual(len(ports), len(set(ports)))
        for group in made:
            for number, name in enumerate(("n0", "n1", "n2")):
                said = " ".join(group.command(number))
                if said.endswith(".conf"):
                    said = Path(said.split()[-1]).read_text()
                self.assertIn(str(at / group.peer.name / name), said)
                self.assertTrue(all(str(port) in said for port in group._ports[number]), said)

    def test_flush(self) -> None:
        """The classes differ in the option that they are named for."""
        at = Path(self.mktemp())
        said = {}
        for name in ("nats", "nats-always", "redis", "redis-always"):
            command = peer_groups.make_peer(name, at).command(1)
            said[name] = Path(command[-1]).read_text() if command[-1].endswith(".conf") else " ".join(command)
        self.assertIn("sync_interval: always", said["nats-always"])
        self.assertNotIn("sync_interval", said["nats"])
        self.assertIn("--appendfsync always", said["redis-always"])
        self.assertIn("--appendfsync everysec", said["redis"])
        self.assertIn("--replicaof", said["redis"])


class FakeGroup(MeasuredGroup):
    """Says what is done with it."""

    def __init__(self, name: str, events: list[str], rates: Iterable[float] = ()) -> None:
        self.systems = {name: name}
        self.train_s = 0.1
        self._events, self._rates = events, [*rates]

    @property
    def children(self) -> Iterable[Child]:
        """None."""
        return ()

    def rss_bytes(self) -> int:
        """Some."""
        return 1 << 20

    def start(self) -> None:
        """Report."""
        self._notify("start")

    def settle(self) -> None:
        """Report."""
        self._notify("settle")

    def pause(self) -> None:
        """Report."""
        self._notify("pause")

    def resume(self) -> None:
        """Report."""
        self._notify("resume")

    def _notify(self, what: str) -> None:
        self._events.append(f"{what} {next(iter(self.systems))}")

    def measure(
        self, wire: str, *, body_bytes: int, links: int, window: int, warm_up_s: float, seconds: float
    ) -> Sample:
        """The next rate."""
        self._notify(f"{window}")
        rate = self._rates.pop(0) if self._rates else 100.0
        return Sample(throughput_per_s=rate, p50_ms=1.0, p99_ms=2.0, acknowledged=1)


def measured(*rates: float) -> Measured:
    """Rounds with these rates."""
    return Measured(samples=[
        Sample(throughput_per_s=rate, p50_ms=1.0, p99_ms=2.0, acknowledged=1) for rate in rates
    ])


def results_of(**systems: tuple[str, tuple[float, ...]]) -> dict[Cell, Measured]:
    """Name (with _ for -) to flush and rates, at one place."""
    return {
        Cell(system=name.replace("_", "-"), flush=flush, body_bytes=100, links=1, window=64): measured(*rates)
        for name, (flush, rates) in systems.items()
    }


class MeasuringTests(SynchronousTestCase):
    """Turns and figures."""

    def test_interleaved(self) -> None:
        """All are started and warmed up; in each round each is measured while the others are paused."""
        events: list[str] = []
        plan = Plan(loads=((1, 1), (1, 64)), bodies=(100,), rounds=2, warm_up_s=0.0, seconds=0.1)
        found = measure_all([FakeGroup(name, events) for name in "ab"], plan)
        started = [f"{what} {name}" for name in "ab" for what in ("start", "64", "pause")]
        a_round = [f"{what} {name}" for name in "ab" for what in ("resume", "1", "64", "pause")]
        self.assertEqual(events, started + a_round * 2)
        self.assertEqual([len(one.samples) for one in found.values()], [2] * 4)

    def test_rows(self) -> None:
        """The median of the rounds, and their spread."""
        (row,) = append.as_rows(results_of(redis_always=("sync", (300.0, 100.0, 200.0))))
        self.assertEqual(
            [row[name] for name in ("throughput_per_s", "least_per_s", "most_per_s")], [200.0, 100.0, 300.0]
        )
        self.assertEqual(row["durability"], PEERS["redis-always"].durability)

    def shown(self, results: dict[Cell, Measured], **options: bool) -> str:
        """What people see."""
        self.patch(common.console, "_width", 250)
        with append.console.capture() as captured:
            append.show(results, [], MACHINE, **options)
        return captured.get()

    def test_ratios(self) -> None:
        """Only within a flush class."""
        results = results_of(
            dledger_binary=("async", (800.0,)), nats=("async", (200.0,)), etcd=("sync", (50.0,))
        )
        self.assertIn("4.0x", self.shown(results))
        self.assertNotIn("16.0x", self.shown(results))

    def test_quick(self) -> None:
        """No ratios, and no aims, against cold peers."""
        results = results_of(dledger_binary=("async", (800.0,)), java_dledger=("async", (200.0,)))
        self.assertIn("aim: binary", self.shown(results))
        output = self.shown(results, has_ratios=False)
        self.assertNotIn("4.0x", output)
        self.assertNotIn("aim:", output)
        seen: list[bool] = []
        self.patch(append, "show", lambda *_arguments, has_ratios: seen.append(has_ratios))
        self.patch(append, "measure_all", lambda _groups, _plan: results)
        self.patch(append, "probe_machine", lambda _directory: MACHINE)
        for arguments in (["--quick"], []):
            arguments = ["--flush", "", "--peers", "", *arguments]
            CliRunner().invoke(append.main, arguments, catch_exceptions=False)
        self.assertEqual(seen, [False, True])


def document_of(**systems: tuple[str, tuple[float, ...]]) -> dict[str, Any]:
    """A file of results."""
    rows = append.as_rows(results_of(**systems))
    rows[0]["body_bytes"] = 1024
    return {
        "results": rows, "machine": attrs.asdict(MACHINE), "versions": {"etcd": "3.4.23"}, "note": "A <note>"
    }


class TableTests(SynchronousTestCase):
    """Tables and plots from files."""

    document = document_of(
        dledger_binary=("async", (3000.0, 1000.0, 2000.0)), etcd=("sync", (50.0, 40.0, 60.0))
    )

    def test_markdown(self) -> None:
        """A row for each system, with the spread; a dash where nothing was measured."""
        lines = table.markdown(self.document).splitlines()
        self.assertEqual(lines[:5], [
            "**A <note>**", "",
            "| System | Acknowledged when in | 100 B x 64 | 1024 B x 64 |",
            "|---|---|---:|---:|",
            "| dledger-binary async | memory on a majority, fsync soon | - | 2,000 (1,000..3,000) |",
        ])
        self.assertEqual(lines[5], "| etcd sync | fsync on a majority, each | 50.0 (40.0..60.0) | - |")
        self.assertIn("etcd 3.4.23", lines[-1])

    def test_svg(self) -> None:
        """A bar for each row, longer for a higher rate."""
        root = ElementTree.fromstring(table.svg(self.document))
        _ground, etcd, ours = root.iter("{http://www.w3.org/2000/svg}rect")
        self.assertLess(float(etcd.attrib["width"]), float(ours.attrib["width"]))

    def test_written_anew(self) -> None:
        """Only what is between the comments changes."""
        root = Path(self.mktemp())
        root.mkdir()
        (root / "r.json").write_text(json.dumps(self.document))
        begin, end = "<!-- benchmark: r.json -->\n", "<!-- end of benchmark -->"
        text = table.written_anew(f"before\n{begin}stale\n{end}\nafter\n", root)
        self.assertEqual(text, f"before\n{begin}{table.markdown(self.document)}{end}\nafter\n")
        self.assertEqual(table.written_anew(text, root), text)

    def test_commands(self) -> None:
        """Print, draw, write."""
        path = Path(self.mktemp())
        path.write_text(json.dumps(self.document))
        drawn = path.with_suffix(".svg")
        result = CliRunner().invoke(table.main, [str(path)])
        self.assertEqual(result.output, table.markdown(self.document))
        self.assertEqual(CliRunner().invoke(table.main, [str(path), "--svg", str(drawn)]).exit_code, 0)
        self.assertEqual(drawn.read_text(), table.svg(self.document))
        page = path.with_suffix(".md")
        page.write_text("no table\n")
        self.assertEqual(CliRunner().invoke(table.main, ["--write", str(page)]).exit_code, 0)
        self.assertEqual(page.read_text(), "no table\n")

    def test_documents(self) -> None:
        """Every table in the documents, and every plot, is made of its file by the command."""
        found: list[str] = []
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            text = path.read_text("utf-8")
            found += [section["path"] for section in table.SECTION.finditer(text)]
            remedy = f"python -m benchmarks.table --write {path.relative_to(ROOT)}"
            self.assertEqual(table.written_anew(text), text, remedy)
            self.assertEqual(text.count("<!-- benchmark: "), len(table.SECTION.findall(text)), path.name)
        self.assertIn("docs/benchmarks/peers.json", found)
        for name in sorted(set(found)):
            drawn = (ROOT / name).with_suffix(".svg")
            if drawn.exists():
                document = json.loads((ROOT / name).read_text("utf-8"))
                self.assertEqual(drawn.read_text("utf-8"), table.svg(document), drawn.name)


class ListTests(SynchronousTestCase):
    """C{python -m benchmarks}."""

    def run_with(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A program of its own."""
        return subprocess.run([sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True,
                              text=True, timeout=240)

    def test_list(self) -> None:
        """Each program, with its purpose; each of them is there, and runs by its name."""
        lines = self.run_with().stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines], list(PROGRAMS))
        self.assertTrue(all(len(line.split()) > 5 for line in lines))
        self.assertIn("Usage: ", self.run_with("failover", "--help").stdout)

    def test_unknown(self) -> None:
        """The names are in the error."""
        done = self.run_with("nothing")
        self.assertEqual(done.returncode, 64)
        self.assertIn("append, many", done.stderr)
