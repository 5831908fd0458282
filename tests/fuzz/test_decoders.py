# -*- test-case-name: tests.fuzz.test_decoders -*-
"""The fuzzing of the decoders: a short run, its reach, its ability to find errors; and the runner."""

from __future__ import annotations

import io
import itertools
import random
import struct
from collections.abc import Callable
from typing import Any
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import read_object
from protocols.wire.framing import Frame, FrameBuffer
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.java.json_bodies import decode_request
from protocols.wire.ledger.push import decode_frame
from protocols.wire.rocketmq.message import decode_message
from tests.fuzz import run, targets
from tests.fuzz.mutation import damaged, damaged_json, loosely
from tests.fuzz.run import chance_of, fuzz, main
from tests.fuzz.targets import DECODERS, TARGETS

EXECUTIONS = 300


class FuzzTests(SynchronousTestCase):
    """Any bytes yield messages or L{WireError}, nothing else."""

    def test_short_run(self) -> None:
        """Every decoder passes."""
        for name in DECODERS:
            outcome = fuzz(TARGETS[name], seed=1, first=0, executions=EXECUTIONS)
            self.assertIsNone(outcome.failed_at, f"{name} {outcome.failed_at}\n{outcome.trace}")
            self.assertEqual(outcome.executions, EXECUTIONS)

    def test_all_targets_are_known(self) -> None:
        """They are the decoders, and recovery."""
        self.assertEqual(set(TARGETS), {*DECODERS, "recovery"})

    def test_both_outcomes_are_reached(self) -> None:
        """Damage that is always refused, or never, would prove little."""
        for name, function in (("native", "decode_frame"), ("broker", "decode_broker_frame"),
                               ("remoting", "decode_command"),
                               ("json-values", "decode_request"), ("records", "check_records"),
                               ("rocketmq", "decode_message"), ("rocketmq", "decode_batch")):
            passed: list[bool] = []
            original: Callable[..., Any] = getattr(targets, function)
            with mock.patch.object(targets, function, counting(original, passed)):
                fuzz(TARGETS[name], seed=1, first=0, executions=EXECUTIONS)
            share = sum(passed) / len(passed)
            self.assertTrue(0.05 < share < 0.95, f"{name}: {share:.0%} pass {function}")


def counting(function: Callable[..., Any], passed: list[bool]) -> Callable[..., Any]:
    """C{function}, recording whether it accepted its bytes."""

    def counted(*arguments: Any, **options: Any) -> Any:
        try:
            result = function(*arguments, **options)
        except WireError:
            passed.append(False)
            raise
        passed.append(True)
        return result

    return counted


class NoticeTests(SynchronousTestCase):
    """Decoders that break the invariant are caught."""

    def found(self, name: str, function: str, broken: Callable[..., Any]) -> str:
        """The trace of a run with a broken decoder."""
        with mock.patch.object(targets, function, broken):
            outcome = fuzz(TARGETS[name], seed=1, first=0, executions=EXECUTIONS)
        self.assertIsNotNone(outcome.failed_at, name)
        return outcome.trace

    def test_other_exceptions(self) -> None:
        """An error of C{struct} is not an answer to a peer."""

        def careless(frame: bytes) -> Any:
            if len(frame) < 40:
                raise struct.error("unpack requires more")
            return decode_frame(frame)

        for name in ("native", "framing", "appends"):
            self.assertIn("struct.error", self.found(name, "decode_frame", careless))

    def test_body_error_of_a_header(self) -> None:
        """It would keep a connection that cannot be trusted."""

        def wrong(frame: bytes) -> Any:
            raise BodyError("code=x is not a number")

        self.assertIn("a header is not a body", self.found("remoting", "decode_command", wrong))

    def test_what_is_read_is_not_what_was_said(self) -> None:
        """A field that changes when it is written and read again."""
        terms = itertools.count()

        def forgetful(kind: Any, body: bytes) -> Any:
            return attrs.evolve(decode_request(kind, body), term=next(terms))

        self.assertIn("assert read == message", self.found("json-values", "decode_request", forgetful))

    def test_framing_that_depends_on_the_cuts(self) -> None:
        """A buffer that forgets an unfinished frame; and one whose memory is not bounded."""

        class Forgetful(FrameBuffer):
            def feed(self, data: bytes) -> list[Frame]:
                """Forget the bytes kept so far."""
                self.kept.clear()
                return super().feed(data)

        class Hoarder(FrameBuffer):
            kept_bytes = 1 << 30

        self.assertIn("AssertionError", self.found("framing", "FrameBuffer", Forgetful))
        self.assertIn("bytes kept", self.found("framing", "FrameBuffer", Hoarder))

    def test_messages_that_are_read_wrongly(self) -> None:
        """A field that is read wrongly."""

        def wrong(data: bytes, offset: int, **options: Any) -> Any:
            return attrs.evolve(decode_message(data, offset, **options), queue_id=-77)

        self.assertIn("encode_message", self.found("rocketmq", "decode_message", wrong))

    def test_records_that_are_not_checked(self) -> None:
        """They could not be walked."""

        def lenient(batch: EntryBatch) -> None:
            return None

        self.found("records", "check_records", lenient)


class MutationTests(SynchronousTestCase):
    """The damage itself."""

    def test_damage(self) -> None:
        """The result nearly always differs; damage never fails, even on empty data."""
        rng = random.Random(1)
        data = bytes(range(100))
        changed = sum(damaged(data, (data,), rng) != data for _ in range(200))
        self.assertGreater(changed, 180)
        for _ in range(200):
            damaged(b"", (b"",), rng)

    def test_json(self) -> None:
        """A changed document, and a loose spelling that our reader understands."""
        rng = random.Random(1)
        document = {"group": "it's", "entry": {"index": 5, "list": [1, 2, []]}, "nothing": {}}
        self.assertGreater(sum(damaged_json(document, rng) != document for _ in range(200)), 180)
        for _ in range(200):
            self.assertEqual(read_object(loosely(document, rng).encode()), document)


def failing_at(*numbers: float) -> targets.Target:
    """A target that fails when the first number of its generator is one of C{numbers}."""

    def target(rng: random.Random) -> None:
        assert rng.random() not in numbers, "found"

    return target


class RunTests(SynchronousTestCase):
    """The command line."""

    def run_main(self, *arguments: str) -> tuple[int, list[str]]:
        """Exit status and lines of the output."""
        out = io.StringIO()
        status = main(arguments, out)
        return status, out.getvalue().splitlines()

    def test_all(self) -> None:
        """There is one line for each target, and one for the sum."""
        status, lines = self.run_main("--executions", "2", "--seed", "5")
        self.assertEqual(status, 0)
        self.assertEqual([line.split()[0] for line in lines[:-1]], list(TARGETS))
        self.assertTrue(all(line.endswith("ok") for line in lines[:-1]))
        self.assertEqual(lines[-1], f"{len(TARGETS)} targets passed, 0 failed")

    def test_failure(self) -> None:
        """A target stops at its failure, and prints a command that repeats it; other targets still run."""
        target = failing_at(chance_of(3, 17).random())
        with mock.patch.object(run, "TARGETS", {"bad": target, "good": failing_at()}):
            status, lines = self.run_main("--executions", "100", "--seed", "3")
            self.assertEqual(status, 1)
            self.assertIn("18 executions", lines[0])
            self.assertTrue(lines[0].endswith("FAILED"))
            (again,) = [line for line in lines if line.startswith("again: python -m tests.fuzz.run ")]
            status, _ = self.run_main(*again.split()[4:])
            self.assertEqual(status, 1)
            self.assertEqual(lines[-1], "1 targets passed, 1 failed")
            self.assertEqual(self.run_main("--target", "good", "--executions", "1")[0], 0)

    def test_chances_differ(self) -> None:
        """They depend on seed and number."""
        chances = {chance_of(seed, number).random() for seed in range(10) for number in range(10)}
        self.assertEqual(len(chances), 100)

    def test_unknown_target(self) -> None:
        """The error names the known targets."""
        errors = io.StringIO()
        with mock.patch("sys.stderr", errors):
            self.assertRaises(SystemExit, main, ["--target", "framing,nothing"])
        self.assertIn("no target 'nothing'; there are framing, ", errors.getvalue())
