# -*- test-case-name: tests.processes.test_load -*-
"""The tools of the benchmarks: meters, frames from templates, quantiles."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from benchmarks import append, failover, open_ledger, programs
from benchmarks.common import number, quantile
from benchmarks.load import Meter, NativeFrames, RemotingFrames, load_in_child
from protocols.wire.codes import ResponseCode
from protocols.wire.framing import FrameBuffer
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java.json_bodies import decode_request, encode_response
from protocols.wire.ledger.messages import AppendRequest, AppendResponse
from protocols.wire.ledger.push import decode_frame, encode_response_frame
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from tests.processes.members import Group


class MeterTests(SynchronousTestCase):
    """Only acknowledgements in the measured span count."""

    def test_span(self) -> None:
        """The warm-up and late acknowledgements do not count."""
        meter = Meter(begin_s=10.0, end_s=12.0)
        for sent_s, now_s, count in ((9.0, 9.5, 100), (9.9, 10.0, 3), (10.0, 11.0, 1), (11.0, 12.0, 100)):
            meter.acknowledged(sent_s, now_s, count)
        sample = meter.sample()
        self.assertEqual((sample.acknowledged, sample.throughput_per_s), (4, 2.0))
        self.assertAlmostEqual(sample.p50_ms, 100.0)
        self.assertAlmostEqual(sample.p99_ms, 1000.0)

    def test_refused(self) -> None:
        """Refusals are counted, with the first reason."""
        meter = Meter(begin_s=0.0, end_s=1.0)
        meter.not_done("code 404", 2)
        meter.not_done("code 502")
        self.assertEqual((meter.sample().refused, meter.sample().reason), (3, "code 404"))

    def test_quantile(self) -> None:
        """The smallest value that the given share does not exceed."""
        self.assertEqual([quantile(range(1, 101), share) for share in (0.5, 0.99, 1.0)], [50, 99, 100])
        self.assertEqual(quantile([7.0], 0.5), 7.0)

    def test_number(self) -> None:
        """Only significant digits."""
        self.assertEqual([number(value) for value in (12345.6, 12.34, 0.123)], ["12,346", "12.3", "0.12"])
        self.assertEqual(number(float("nan")), "-")


class FrameTests(SynchronousTestCase):
    """The generators' frames are those of the protocol."""

    def test_remoting(self) -> None:
        """One frame per append; answers are recognised by opaque and code, with any cuts."""
        frames = RemotingFrames(group="g", remote_id="n0", body=b"hello")
        data, ids = frames.requests(3)
        commands = [decode_command(frame.data) for frame in FrameBuffer().feed(data)]
        self.assertEqual([(command.opaque, 1) for command in commands], ids)
        request = AppendRequest(group="g", remote_id="n0", bodies=(b"hello",))
        decoded = [decode_request(RequestCode.APPEND, command.body) for command in commands]
        self.assertEqual(decoded, [request] * 3)
        answers = b"".join(
            encode_command(RemotingCommand(
                code=200, flag=1, opaque=opaque, body=encode_response(AppendResponse(code=code, index=1))
            ))
            for opaque, code in ((3, ResponseCode.SUCCESS), (1, ResponseCode.NOT_LEADER))
        )
        received, seen = bytearray(), []
        for byte in answers:
            received.append(byte)
            seen += list(frames.answers(received))
        self.assertEqual(seen, [(3, ""), (1, "code 404")])

    def test_native(self) -> None:
        """Appends that are possible at the same time share a frame, up to a bound."""
        frames = NativeFrames(group="g", remote_id="n0", body=b"hello")
        data, ids = frames.requests(600)
        decoded = [decode_frame(frame.data) for frame in FrameBuffer().feed(data)]
        counts = [len(message.bodies) for _opaque, message in decoded if isinstance(message, AppendRequest)]
        self.assertEqual(list(zip((opaque for opaque, _message in decoded), counts, strict=True)), ids)
        self.assertEqual(sum(counts), 600)
        answer = encode_response_frame(AppendResponse(index=1, count=512), ids[0][0])
        self.assertEqual(list(frames.answers(bytearray(answer))), [(ids[0][0], "")])


class ProgramTests(SynchronousTestCase):
    """The programs run, and write their results."""

    def run_program(self, program: object, *arguments: str) -> dict[str, object]:
        """The content of its JSON file."""
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "results.json"
            result = CliRunner().invoke(program, [*arguments, "--json", str(path)])  # type: ignore[arg-type]
            self.assertEqual(result.exit_code, 0, result.output)
            document: dict[str, object] = json.loads(path.read_text())
        return document

    def test_append(self) -> None:
        """One row per system, flush, body size and load."""
        document = self.run_program(
            append.main, "--quick", "--windows", "1,64,4x2", "--flush", "async", "--peers", "",
            "--seconds", "0.5",
        )
        rows = document["results"]
        assert isinstance(rows, list)
        self.assertEqual(
            {(row["system"], row["links"], row["window"], row["flush"]) for row in rows},
            {
                (system, *load, "async")
                for system in ("dledger-binary", "dledger-native", "dledger-remoting")
                for load in ((1, 1), (1, 64), (4, 2))
            },
        )
        for row in rows:
            self.assertEqual(row["failures"], [])
            self.assertGreater(row["throughput_per_s"], 10)
            self.assertTrue(0 < row["p50_ms"] <= row["p99_ms"])

    def test_open_ledger(self) -> None:
        """Both kinds of end, and both ways to open."""
        rows = self.run_program(open_ledger.main, "--mebibytes", "16")["results"]
        assert isinstance(rows, list)
        self.assertEqual(
            [(row["after"], row["what"]) for row in rows],
            [(after, what) for after in ("clean stop", "SIGKILL") for what in ("store", "member")],
        )

    def test_failover(self) -> None:
        """A leader is killed, and another one is elected."""
        (row,) = self.run_program(failover.main, "--kills", "1")["results"]  # type: ignore[misc]
        self.assertTrue(0 < row["p50_ms"] < 15_000)

    def test_programs(self) -> None:
        """A machine comes to the end of its log, and writes a snapshot at each member."""
        sizes = ("--commands", "200000", "--mebibytes", "2", "--seconds", "0.5")
        applied, snapshot = self.run_program(programs.main, *sizes)["results"]  # type: ignore[misc]
        self.assertGreater(applied["commands"], 0)
        self.assertGreater(applied["per_s"], 1000)
        self.assertGreater(snapshot["state_bytes"], 2 * 2**20)
        self.assertTrue(0 < snapshot["during_p50_ms"] <= snapshot["during_p99_ms"])

    def test_client_load(self) -> None:
        """Our client as a load fills its window."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            group = Group(Path(name))
            self.addCleanup(group.kill)
            group.start()
            leader_id = group.leader()
            for wire in ("client", "native"):
                sample = load_in_child(
                    address=group.peers[leader_id], remote_id=leader_id, group="default", wire=wire,
                    window=100, body_bytes=10, warm_up_s=0.1, seconds=0.4, peers=group.peers_text,
                )
                self.assertEqual(sample.refused, 0, sample)
                self.assertGreater(sample.acknowledged, 100)
            group.kill()
