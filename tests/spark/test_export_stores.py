# -*- test-case-name: tests.spark.test_export_stores -*-
"""Exports into object stores: each row once, whatever call fails, whoever else exports."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export import store_files
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.files import ExportError
from dledger.spark.export.store_files import LocalFolder, StoreExport
from dledger.storage.backups.place import RemotePlace
from tests.spark.ledgers import Ledger
from tests.storage.archive_store import AFTER, BEFORE, FaultyStore, InThisThread, Killed

URL = "faulty://bucket/out"
SMALL, LARGE = ExportSettings(format="jsonl", part_bytes=400), ExportSettings(format="jsonl")


class StoreCase(SynchronousTestCase):
    """A ledger, and a store that shows files when they are whole."""

    def setUp(self) -> None:
        """Small segments."""
        self.ledger = Ledger(self.mktemp())
        self.addCleanup(self.ledger.close)
        self.ledger.fill(16)
        self.ledger.commit()
        self.fresh()

    def fresh(self) -> None:
        """An empty store."""
        self.files = FaultyStore()
        self.files.is_atomic = True

    def exporter(self, settings: ExportSettings = LARGE, **options: object) -> Exporter:
        """Open an export."""
        given = {"path": self.ledger.path, **{name: str(value) for name, value in options.items()}}
        source = ExportSource.of(given, settings.columns, settings.partition_by)
        directory = StoreExport.open(RemotePlace(self.files, URL, InThisThread(20.0)), settings.kept())
        return Exporter(directory, source, settings)

    def export(self, settings: ExportSettings = LARGE, **options: object) -> int:
        """To the end; rows written."""
        with self.exporter(settings, **options) as exporter:
            exporter.step(0, is_last=True)
            return exporter.progress.rows

    def killed(self, call: int, fault: str, settings: ExportSettings = LARGE) -> bool:
        """An export whose process ends at a call. @return: whether it ended there."""
        self.files.calls.clear()
        self.files.faults = {call: fault}
        self.files.kills = True
        try:
            self.export(settings)
        except Killed:
            return True
        finally:
            self.files.faults, self.files.kills = {}, False
        return False

    def visible(self) -> dict[str, bytes]:
        """What readers see."""
        return {path: data for path, data in self.files.contents().items()
                if not any(name.startswith("_") for name in path.split("/"))}

    def indexes(self) -> list[int]:
        """In all visible files."""
        return sorted(json.loads(line)["index"] for data in self.visible().values()
                      for line in data.decode().splitlines())

    def assertOnce(self, what: object = "") -> None:
        """After another run all rows are there, each once, and nothing is left over."""
        self.export()
        self.assertEqual(self.indexes(), list(range(self.ledger.store.ledger_end_index + 1)), what)
        others = sorted(path.removeprefix("/bucket/out/") for path in self.files.contents().keys()
                        - self.visible().keys())
        self.assertEqual([name.partition("/")[0] for name in others], ["_export"], what)


class FilesTests(StoreCase):
    """Files alone."""

    def test_parts(self) -> None:
        """Over several runs, with the names of a directory's; the state says how far it is."""
        self.assertEqual(self.export(SMALL, endingOffsets=10), 10)
        names = list(self.visible())
        self.assertGreater(len(names), 1)
        self.assertRegex(names[0], r"^/bucket/out/part-0{20}-\d{20}\.jsonl$")
        self.assertEqual(self.export(), 6)
        self.assertEqual(self.export(), 0)
        self.assertOnce()
        state = json.loads(next(data for path, data in self.files.contents().items() if "_export" in path))
        self.assertEqual((state["next"], state["rows"], state["pending"]), (16, 16, None))

    def test_folders(self) -> None:
        """One for each value."""
        self.export(ExportSettings(format="jsonl", partition_by=("term", "size")))
        self.assertTrue(all(path.startswith("/bucket/out/term=") for path in self.visible()))

    def test_no_copy(self) -> None:
        """A kind of store that cannot copy."""
        def refuse(*_paths: str) -> None:
            raise NotImplementedError

        self.patch(self.files, "cp_file", refuse)
        self.export(SMALL)
        self.assertOnce()

    def test_request_sent_twice(self) -> None:
        """A client that lost the answer finds the name taken by itself."""
        real = self.files.pipe_file

        def twice(path: str, value: bytes, mode: str = "overwrite") -> None:
            real(path, value, mode=mode)
            real(path, value, mode=mode)

        self.patch(self.files, "pipe_file", twice)
        self.export(SMALL)
        self.assertOnce()

    def test_refused(self) -> None:
        """Other files, other settings, a damaged state."""
        self.files.pipe_file("/bucket/out/x.csv", b"")
        self.assertIn("'x.csv' is in it", str(self.assertRaises(ExportError, self.export)))
        self.fresh()
        self.files.pipe_file("/bucket/out/_pending/theirs", b"only copy")
        self.assertIn("'_pending/theirs' is in it", str(self.assertRaises(ExportError, self.export)))
        self.assertEqual(self.files.cat_file("/bucket/out/_pending/theirs"), b"only copy")
        self.fresh()
        self.export()
        other = ExportSettings(format="jsonl", columns=("index",))
        said = str(self.assertRaises(ExportError, self.export, other))
        self.assertIn(f"{URL} was begun with columns=nothing, and now index", said)
        path = next(path for path in self.files.contents() if "_export" in path)
        self.files.pipe_file(path, b"{")
        self.assertIn("is damaged", str(self.assertRaises(ExportError, self.export)))

    def test_temporary_files(self) -> None:
        """Of this machine, they are gone at the end, also after an error."""
        place = self.mktemp()
        os.mkdir(place)
        self.patch(store_files.tempfile, "tempdir", os.path.abspath(place))
        self.export()
        self.ledger.fill(5)
        self.ledger.commit()
        self.files.faults = {len(self.files.calls) + 15: BEFORE}
        self.assertRaises(OSError, self.export, SMALL)
        self.assertEqual(os.listdir(place), [])

    def test_left_by_a_kill(self) -> None:
        """The next export removes them; those of a running one, and what is no such directory, stay."""
        place = Path(self.mktemp()).absolute()
        place.mkdir()
        self.patch(store_files.tempfile, "tempdir", str(place))
        running, killed, elsewhere = (LocalFolder() for _ in range(3))
        self.addCleanup(running.close)
        moved = elsewhere.path.rename(place / "elsewhere")
        for folder in (killed, elsewhere):
            os.close(folder._lock)
            folder._lock = -1
        elsewhere.path.symlink_to(moved)
        out = place / "dledger-export-2026"
        out.mkdir()
        (out / "_lock").write_text("")
        self.export()
        self.assertEqual(set(place.iterdir()), {running.path, moved, elsewhere.path, out})
        self.assertTrue(list(moved.iterdir()))


class FaultTests(StoreCase):
    """Each call of a run fails, or is the last one."""

    def test_every_call(self) -> None:
        """Before and after its effect; what was visible before stays, and the rest comes once."""
        for settings in (SMALL, LARGE):
            for fault in (BEFORE, AFTER):
                call, ended = -1, True
                while ended:
                    call += 1
                    self.fresh()
                    ended = self.killed(call, fault, settings)
                    before = self.visible()
                    self.assertOnce((call, fault))
                    self.assertLessEqual(before.items(), self.visible().items())
                self.assertGreater(call, 15)

    def test_every_error(self) -> None:
        """A store that fails once: the run ends with an error, and the next one goes on."""
        for fault in (BEFORE, AFTER):
            call, failed = -1, True
            while failed:
                call += 1
                self.fresh()
                self.files.faults = {call: fault}
                try:
                    self.export(SMALL)
                    failed = False
                except OSError:
                    pass
                except ExportError as error:
                    self.assertIn(f"{URL} cannot be used: [Errno 5] the store fails", str(error))
                self.files.faults = {}
                self.assertOnce((call, fault))
            self.assertGreater(call, 15)

    def test_kills_in_a_row(self) -> None:
        """Run after run ends somewhere, as the log grows."""
        chance = random.Random(int(os.environ.get("DLEDGER_TABLE_SEED", "1")))
        for _ in range(int(os.environ.get("DLEDGER_TABLE_KILLS", "50"))):
            if not self.killed(chance.randrange(40), chance.choice((BEFORE, AFTER)),
                               chance.choice((SMALL, LARGE))):
                self.ledger.fill(chance.randrange(2, 9))
                self.ledger.commit()
        self.assertOnce()


class TwoTests(StoreCase):
    """Two exports at a time, which cut the log at other places."""

    def between(self, call: int, other: Callable[[], object]) -> str:
        """An export, during which another program does something. @return: its error, empty without."""
        self.files.calls.clear()
        self.files.between = {call: other}
        try:
            self.export(SMALL)
        except ExportError as error:
            return str(error)
        finally:
            self.files.between = {}
        return ""

    def test_a_second_run(self) -> None:
        """It begins before any call of the first one, and goes to the end; the first one ends."""
        said, call = set(), -1
        seen: list[int] = []
        while len(seen) > call:
            call += 1
            self.fresh()
            said.add(self.between(call, lambda: seen.append(self.export(LARGE))))
            self.assertOnce(call)
        self.assertGreater(call, 20)
        self.assertEqual(said, {"", f"another export has taken {URL} over, and goes on where this one ends: "
                                    "let one of them run"})

    def test_a_second_run_that_ends(self) -> None:
        """The second one is killed at any of its calls; then the first one goes on, as far as it may."""
        chance = random.Random(2)
        opening = [(call, end, AFTER) for call in range(6, 11) for end in range(15, 27)]
        for call, end, fault in (*opening, *(
            (chance.randrange(45), chance.randrange(30), chance.choice((BEFORE, AFTER))) for _ in range(60)
        )):
            self.fresh()

            def second(end: int = end, fault: str = fault) -> None:
                self.killed(end, fault)

            self.between(call, second)
            self.assertOnce((call, end, fault))

    def test_an_old_state(self) -> None:
        """A number that was used, and removed since, is not taken a second time."""
        with self.exporter(SMALL) as first:
            for _ in range(3):
                self.export(SMALL, endingOffsets=5)
            self.assertRaises(ExportError, first.step, 0, is_last=True)
        self.assertEqual(self.indexes(), list(range(5)))
        self.assertOnce()

    def test_a_file_that_is_gone(self) -> None:
        """Somebody cleans up a file that a state lists: its rows are not passed over."""
        call = -1
        while not any("part" in name for name in self.visible()):
            call += 1
            self.fresh()
            self.killed(call, AFTER)
        self.fresh()
        self.killed(call - 1, BEFORE)
        kept = [path for path in self.files.contents() if "_pending" in path]
        self.assertEqual(len(kept), 1)
        self.files.rm_file(kept[0])
        self.assertIn("only exports may remove files", str(self.assertRaises(ExportError, self.export)))

    def test_always_others(self) -> None:
        """An export that is overtaken whenever it begins ends."""
        self.patch(StoreExport, "_is_next", lambda _export: False)
        self.assertIn("by other exports", str(self.assertRaises(ExportError, self.export)))
