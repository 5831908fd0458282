# -*- test-case-name: tests.spark.test_export_follow -*-
"""When a follower looks again, and that it does not wait for uncommitted entries."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export.files import ExportError
from dledger.spark.export.follow import EXPIRE_EVERY, MAINTAIN_MS, RETRY_MS_MAX, Follower
from dledger.spark.formats.log import DamageError, DataLossError, ReadError


class FakeExporter:
    """Fails when asked to."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.steps: list[tuple[int, bool]] = []
        self.finished = 0
        self.of_tables: list[str] = []

    def tables(self) -> list[str]:
        """Those that can be maintained."""
        return list(self.of_tables)

    def should_stop(self) -> bool:
        """Never."""
        return False

    def step(self, now_ms: int, *, is_last: bool) -> None:
        """Fail with the next error, if there is one."""
        self.steps.append((now_ms, is_last))
        if self.errors:
            raise self.errors.pop(0)

    def finish(self) -> None:
        """As L{step}."""
        self.finished += 1
        if self.errors:
            raise self.errors.pop(0)


class FollowerTests(SynchronousTestCase):
    """Turns."""

    def setUp(self) -> None:
        """A follower of nothing."""
        self.exporter = FakeExporter()
        self.follower = Follower(self.exporter, interval_ms=1000)  # type: ignore[arg-type]
        self.troubles: list[tuple[str, int]] = []
        self.follower.on_trouble = lambda error, wait_ms: self.troubles.append((str(error), wait_ms))

    def test_end(self) -> None:
        """What was read becomes visible; a log that cannot be read now is no error, a full disk is one."""
        self.follower.end()
        self.assertEqual(self.exporter.finished, 1)
        self.exporter.errors = [ReadError("down"), OSError(28, "full")]
        self.follower.end()
        self.assertRaises(OSError, self.follower.end)

    def test_interval(self) -> None:
        """Nothing wrong: the same time between two turns, and no turn is the last."""
        self.assertEqual([self.follower.turn(now_ms) for now_ms in (5, 6)], [1000, 1000])
        self.assertEqual(self.exporter.steps, [(5, False), (6, False)])

    def test_trouble(self) -> None:
        """A log that cannot be read is waited for, longer each time up to a limit; then all is as before."""
        self.follower.turn(0)
        self.exporter.errors = [ReadError(f"down {number}") for number in range(30)]
        waits = [self.follower.turn(0) for _ in range(31)]
        self.assertEqual(waits[:6], [2000, 4000, 8000, 16000, RETRY_MS_MAX, RETRY_MS_MAX])
        self.assertEqual(waits[29:], [RETRY_MS_MAX, 1000])
        self.assertEqual(self.troubles[0], ("down 0", 2000))
        self.exporter.errors = [ReadError("down again")]
        self.assertEqual(self.follower.turn(0), 2000)

    def test_long_interval(self) -> None:
        """Trouble never makes it look more often than usual."""
        follower = Follower(self.exporter, interval_ms=100_000)  # type: ignore[arg-type]
        follower.turn(0)
        self.exporter.errors = [ReadError("down")]
        self.assertEqual(follower.turn(0), 100_000)

    def test_never_read(self) -> None:
        """A log that could not be read even once is no trouble that passes."""
        self.exporter.errors = [ReadError("no member's directory")]
        self.assertRaises(ReadError, self.follower.turn, 0)

    def test_final(self) -> None:
        """Lost and damaged entries, another log and a full disk are not waited for."""
        self.follower.turn(0)
        for error in (DataLossError("lost"), DamageError("bad"), ExportError("other"), OSError(28, "full")):
            self.exporter.errors = [error]
            self.assertIs(self.assertRaises(type(error), self.follower.turn, 0), error)
        self.assertEqual(self.troubles, [])

    def test_maintenance(self) -> None:
        """Each hour, one table a turn; old versions are forgotten at the first time and each day after it."""
        done: list[tuple[int, object, bool]] = []
        now_ms = 0

        def maintain(table: object, expires: bool) -> str:
            done.append((now_ms, table, expires))
            if table == "bad":
                raise ExportError("locked")
            return f"did {table}" if expires else ""

        self.exporter.of_tables = ["a", "bad"]
        follower = Follower(self.exporter, interval_ms=1000, maintain=maintain)  # type: ignore[arg-type]
        said: list[str] = []
        follower.on_maintained = said.append
        follower.on_trouble = lambda error, wait_ms: said.append(f"{error} {wait_ms}")
        waits = []
        for now_ms in (5, 5 + MAINTAIN_MS - 1, 5 + MAINTAIN_MS, 5 + MAINTAIN_MS + 1, 5 + MAINTAIN_MS + 2):
            waits.append(follower.turn(now_ms))
        self.assertEqual(waits, [1000, 1000, 1, 1000, 1000])
        self.assertEqual(done, [(5 + MAINTAIN_MS, "bad", True), (6 + MAINTAIN_MS, "a", True)])
        self.assertEqual(said, [f"locked {MAINTAIN_MS}", "did a"])
        self.exporter.of_tables = ["a"]
        for number in range(2, 2 + EXPIRE_EVERY):
            now_ms = 5 + number * MAINTAIN_MS
            follower.turn(now_ms)
        self.assertEqual([expires for _, _, expires in done[2:]], [False] * (EXPIRE_EVERY - 1) + [True])
        self.assertEqual(len(said), 3)
