# -*- test-case-name: tests.spark.test_export_files -*-
"""The directory of an export: each part once, wherever a crash interrupts."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export import files as export_files
from dledger.spark.export.files import ExportDirectory, ExportError, ExportPart, part_name, partition_folder
from dledger.spark.export.table_place import LocalTablePlace

SETTINGS = {"format": "jsonl", "columns": ["index", "body"]}


class Crash(BaseException):
    """The process ends here: nothing may handle it."""


class _InDirectory(SynchronousTestCase):
    def setUp(self) -> None:
        """A directory that is not there yet."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.path = Path(held.name) / "a" / "out"

    def open(self, **changes: object) -> ExportDirectory:
        """Open it; closed at the end at the latest."""
        directory = ExportDirectory.open(self.path, {**SETTINGS, **changes})
        self.addCleanup(self.release, directory)
        return directory

    def release(self, directory: ExportDirectory) -> None:
        """Give the lock back, as the end of a process does, and clean up nothing."""
        try:
            os.close(directory._lock)
        except OSError:
            pass

    def stage(self, directory: ExportDirectory, first: int, last: int, *folders: str) -> ExportPart:
        """A part with a file in each of these folders; its content says which."""
        files = []
        for folder in folders or ("",):
            name = f"{folder}{first}"
            directory.stage(name).write_text(f"{folder}:{first}-{last}\n")
            files.append((name, os.path.join(folder, part_name(first, last, "jsonl"))))
        return ExportPart(first=first, last=last, files=tuple(files), rows=last - first + 1)

    def visible(self) -> dict[str, str]:
        """What a reader of the data set sees: name and content."""
        return {
            str(path.relative_to(self.path)): path.read_text().strip()
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and not any(part.startswith("_") for part in path.relative_to(self.path).parts)
        }


class DirectoryTests(_InDirectory):
    """Without crashes."""

    def test_parts(self) -> None:
        """Parts follow one another, over several runs."""
        directory = self.open()
        self.assertIsNone(directory.next_index)
        directory.begin(5)
        directory.commit(self.stage(directory, 5, 9), {"index": 9})
        directory.close()
        directory = self.open()
        self.assertEqual((directory.next_index, directory.rows, dict(directory.proof)), (10, 5, {"index": 9}))
        directory.commit(self.stage(directory, 10, 10), {"index": 10})
        self.assertEqual((directory.next_index, directory.rows), (11, 6))
        names = [part_name(5, 9, "jsonl"), part_name(10, 10, "jsonl")]
        self.assertEqual(self.visible(), {names[0]: ":5-9", names[1]: ":10-10"})

    def test_order_of_names(self) -> None:
        """Names sort as their entries do."""
        names = [part_name(first, first, "parquet") for first in (0, 9, 10, 2**40)]
        self.assertEqual(names, sorted(names))

    def test_partitions(self) -> None:
        """A part of several files in folders of their own."""
        directory = self.open()
        directory.begin(0)
        folders = ("term=1", "term=2/x=%2F")
        directory.commit(self.stage(directory, 0, 3, *folders), {})
        self.assertEqual(list(self.visible()), [f"{folder}/{part_name(0, 3, 'jsonl')}" for folder in folders])

    def test_partition_folder(self) -> None:
        """As Hive spells it: what a path cannot hold is quoted, and there is a name for no value."""
        self.assertEqual(partition_folder(("term", "topic"), (3, "a/b=c%")), "term=3/topic=a%2Fb%3Dc%25")
        self.assertEqual(partition_folder(("topic",), (None,)), "topic=__HIVE_DEFAULT_PARTITION__")
        self.assertEqual(partition_folder((), ()), "")

    def test_finished_files_may_be_taken_away(self) -> None:
        """What a reader has moved away is not exported again."""
        directory = self.open()
        directory.begin(0)
        directory.commit(self.stage(directory, 0, 3), {})
        directory.close()
        (self.path / part_name(0, 3, "jsonl")).unlink()
        self.assertEqual(self.open().next_index, 4)

    def test_unfinished_files_are_removed(self) -> None:
        """What was staged and not committed is gone with the next start, and never was visible."""
        directory = self.open()
        directory.begin(0)
        self.stage(directory, 0, 3)
        self.release(directory)
        again = self.open()
        self.assertEqual((again.next_index, self.visible()), (0, {}))
        self.assertEqual(os.listdir(self.path / "_pending"), [])

    def test_stage_twice(self) -> None:
        """What is staged under a name that was used before begins empty."""
        directory = self.open()
        directory.stage("name").mkdir()
        (directory.stage("name")).write_text("file")
        self.assertFalse(directory.stage("name").exists())


class RefusalTests(_InDirectory):
    """Every refusal says what to do."""

    def assertRefused(self, *parts: str, **changes: object) -> None:
        """Opening fails, and the message has these parts."""
        message = str(self.assertRaises(ExportError, self.open, **changes))
        for part in (str(self.path), *parts):
            self.assertIn(part, message)

    def test_other_settings(self) -> None:
        """Parts of one directory are alike; a run that ended before its first entry has fixed nothing."""
        self.open(format="parquet").close()
        directory = self.open()
        directory.begin(0)
        directory.close()
        self.assertRefused("format=jsonl", "parquet is asked", format="parquet")
        self.assertRefused("columns=index,body", "index is asked", columns=["index"])
        self.assertRefused("new directory", extra="x")

    def test_foreign(self) -> None:
        """A directory with other files is left alone, hidden ones apart."""
        self.path.mkdir(parents=True)
        (self.path / ".keep").write_text("")
        (self.path / "precious.txt").write_text("")
        self.assertRefused("'precious.txt'", "new directory")
        self.assertEqual(sorted(os.listdir(self.path)), [".keep", "precious.txt"])
        (self.path / "precious.txt").unlink()
        self.open()

    def test_pending_of_others(self) -> None:
        """Files in the place of unfinished ones stay, if no export has run in the directory or its table."""
        theirs = self.path / "_pending" / "theirs"
        theirs.parent.mkdir(parents=True)
        theirs.write_text("only copy")
        self.assertRefused("_pending has files of which no export knows", "new directory")
        self.assertRaises(ExportError, LocalTablePlace(self.path).hold)
        self.assertEqual(theirs.read_text(), "only copy")
        (self.path / "_lock").touch()
        self.open().close()
        self.assertFalse(theirs.exists())

    def test_a_file(self) -> None:
        """A file is not a directory."""
        self.path.parent.mkdir(parents=True)
        self.path.write_text("")
        self.assertRefused("cannot be written")

    def test_in_use(self) -> None:
        """Two exports never write to one directory; the second is informed of the first."""
        first = self.open()
        self.assertRefused("another export", str(os.getpid()))
        first.close()
        self.open()

    def test_damaged(self) -> None:
        """A state that does not say how far the export is."""
        self.open().close()
        state = self.path / "_export.json"
        whole = state.read_text()
        for text in ("", whole[:-20], "[]", '{"version": 1, "settings": {}}'):
            state.write_text(text)
            self.assertRefused("damaged", "new directory")
        state.write_text(json.dumps({**json.loads(whole), "version": 2}))
        self.assertRefused("version 2")
        state.write_text(whole)
        self.open()


class CrashTests(_InDirectory):
    """A crash before any one of the calls that change the disk, then another start."""

    CALLS = ("replace", "rename", "fsync", "mkdir")

    def play(self, crash_at: int, *, step: int) -> bool:
        """
        Parts of two files each, up to entry 39; the process ends before its C{crash_at}-th call.

        @param step: entries in a part.
        @return: whether it got to the end before.
        """
        made = 0

        def counted(real: object) -> object:
            def call(*arguments: object, **more: object) -> object:
                nonlocal made
                made += 1
                if made == crash_at:
                    raise Crash
                return real(*arguments, **more)  # type: ignore[operator]

            return call

        directory = self.open()
        # Waiting for the disk would prove nothing here: the process ends, not the machine.
        real = {name: getattr(os, name) for name in self.CALLS} | {"fsync": lambda number: None}
        patches = [self.patch(os, name, counted(call)) for name, call in real.items()]
        try:
            if directory.next_index is None:
                directory.begin(0)
            while (first := directory.next_index or 0) < 40:
                last = min(first + step, 40) - 1
                directory.commit(self.stage(directory, first, last, "", "k=1"), {"index": last})
        except Crash:
            return False
        finally:
            for patch in patches:
                patch.restore()
            self.release(directory)
        return True

    def entries(self) -> dict[str, list[int]]:
        """Entries in the files of each folder, by what is in the files."""
        found: dict[str, list[int]] = {"": [], "k=1": []}
        for content in self.visible().values():
            folder, _, rest = content.partition(":")
            first, _, last = rest.partition("-")
            found[folder] += range(int(first), int(last) + 1)
        return {folder: sorted(entries) for folder, entries in found.items()}

    def test_every_crash(self) -> None:
        """
        Whatever call was the last, all is there once after the next start, which makes other parts; and
        what was visible stays as it was.
        """
        root, crash_at = self.path, 0
        finished = False
        while not finished:
            crash_at += 1
            self.path = root / str(crash_at)
            finished = self.play(crash_at, step=20)
            before = self.visible()
            self.assertTrue(self.play(-1, step=7))
            self.assertLessEqual(before.items(), self.visible().items(), f"call {crash_at}")
            for entries in self.entries().values():
                self.assertEqual(entries, list(range(40)), f"call {crash_at}")
            state = json.loads((self.path / "_export.json").read_text())
            self.assertEqual((state["next"], state["rows"], state["pending"]), (40, 40, None))
        self.assertGreater(crash_at, 20)

    def test_order(self) -> None:
        """Content and names are durable before the state reports them, and that before the first rename."""
        directory = self.open()
        directory.begin(0)
        part = self.stage(directory, 0, 9, "", "k=1")
        root = self.path.resolve()
        did: list[str] = []
        fsync, rename, replace = os.fsync, os.rename, os.replace

        def name(path: object) -> str:
            return os.path.relpath(os.path.realpath(str(path)), root)

        def synced(number: int) -> None:
            did.append(f"sync {name(os.readlink(f'/proc/self/fd/{number}'))}")
            fsync(number)

        def renamed(source: str, target: str) -> None:
            did.append(f"rename {name(target)}")
            (rename if "part" in str(target) else replace)(source, target)

        self.patch(os, "fsync", synced)
        self.patch(os, "rename", renamed)
        self.patch(os, "replace", renamed)
        directory.commit(part, {})
        staged, final = "_pending/0", part_name(0, 9, "jsonl")
        for before, after in (
            (f"sync {staged}", "rename _export.json"), ("sync _pending", "rename _export.json"),
            ("sync _pending/k=10", "rename _export.json"), ("sync _export.json.new", "rename _export.json"),
            ("rename _export.json", "sync ."), ("sync .", f"rename {final}"),
            (f"rename k=1/{final}", "sync k=1"),
        ):
            self.assertLess(did.index(before), did.index(after), f"{before}, {after}: {did}")
        self.assertEqual(did[-3:], ["sync _export.json.new", "rename _export.json", "sync ."])

    def test_taken_away_in_between(self) -> None:
        """A file that was renamed, and taken by a reader before the crash, is not missed."""
        directory = self.open()
        directory.begin(0)
        part = self.stage(directory, 0, 9, "", "k=1")
        self.patch(directory, "_finish", lambda pending: (_ for _ in ()).throw(Crash()))
        self.assertRaises(Crash, directory.commit, part, {})
        (self.path / part_name(0, 9, "jsonl")).unlink()
        self.release(directory)
        self.assertEqual(self.open().next_index, 10)
        self.assertEqual(list(self.visible()), [f"k=1/{part_name(0, 9, 'jsonl')}"])

    def test_full_disk(self) -> None:
        """An error in the middle is raised, and what was visible before is untouched."""
        directory = self.open()
        directory.begin(0)
        directory.commit(self.stage(directory, 0, 9), {})
        before = self.visible()
        part = self.stage(directory, 10, 19)

        def full(path: Path) -> None:
            raise OSError(28, "No space left on device")

        self.patch(export_files, "sync_file", full)
        self.assertRaises(OSError, directory.commit, part, {})
        self.assertEqual(self.visible(), before)
        self.release(directory)
        self.assertEqual(self.open().next_index, 10)
