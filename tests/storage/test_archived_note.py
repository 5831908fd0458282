# -*- test-case-name: tests.storage.test_archived_note -*-
"""A member with C{expire_only_archived} deletes only what an archive has."""

from __future__ import annotations

from dledger.base.disk.file_table import ARCHIVED
from dledger.base.disk.hints import Hints
from dledger.storage.manifests.archive_manifest import read_archive
from dledger.storage.manifests.archived_note import ArchivedNote, read_note, write_note
from dledger.storage.store.file_store import FileStore
from tests.storage.archived_member import PLACE, ArchiveCase
from tests.storage.support import ROOT, config_of


class NoteTests(ArchiveCase):
    """Retention asks for all but the last segment."""

    def setUp(self) -> None:
        super().setUp()
        self.append(30)
        self.ship()
        found = read_archive(self.place, PLACE).manifest
        assert found is not None
        self.pieces = found.pieces
        self.append(30)

    def note(self, count: int) -> None:
        """As if the first C{count} segments were archived."""
        last = self.pieces[count - 1]
        write_note(self.disk, ROOT, ArchivedNote(end_index=last.last_index, end_position=last.end_position,
                                                 target=PLACE))

    def begin(self, **options: bool) -> int:
        """Where the log begins after a start and one house keeping."""
        self.store.clean_close()
        self.store = FileStore.open(config_of(retention_bytes=1024, **options), self.disk)
        self.store.maintenance(1e9, 4, keep_from_index=self.store.ledger_end_index + 1)
        return self.store.ledger_begin_index

    def test_expiry_waits_for_the_note(self) -> None:
        """Nothing goes without a note, and then the segments that it names; without the option, all go."""
        self.assertEqual(self.begin(expire_only_archived=True), 0)
        for count in (1, 3, len(self.pieces)):
            self.note(count)
            self.assertEqual(self.begin(expire_only_archived=True), self.pieces[count - 1].last_index + 1)
        self.assertGreater(self.begin(), self.pieces[-1].last_index + 1)

    def test_does_not_fit(self) -> None:
        """A note that is damaged, or of another log, or ahead of this one, counts as none."""
        last = self.pieces[2]
        for end_index, end_position in (
            (last.last_index - 1, last.end_position), (last.last_index, self.pieces[1].end_position),
            (last.last_index + 1, last.end_position), (10**6, last.end_position), (last.last_index, 10**9),
        ):
            note = ArchivedNote(end_index=end_index, end_position=end_position, target="")
            write_note(self.disk, ROOT, note)
            self.assertEqual(self.begin(expire_only_archived=True), 0, (end_index, end_position))
        self.note(3)
        path = f"{ROOT}/{ARCHIVED.name}"
        sound = self.disk.read_file(path)
        for data in (b"", sound[:-5], sound.replace(b'"end_index": ', b'"end_index": 1'), b"[]"):
            self.disk.write_file(path, data)
            self.assertIsNone(read_note(Hints(self.disk), ROOT))
            self.assertEqual(self.begin(expire_only_archived=True), 0)

    def test_a_note_is_written_once(self) -> None:
        """A note that says the same is not written again."""
        self.note(2)
        count = len(self.disk.calls)
        self.note(2)
        self.assertNotIn("write_file", {call for call, _ in self.disk.calls[count:]})
