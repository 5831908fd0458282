# -*- test-case-name: tests.storage.test_archived_note -*-
"""
The note in a member's directory that says how far its log is in an archive: C{<store>/dledger-<id>/archived}.

C{dledger archive --note} writes it, after each run; a member with C{expire_only_archived} reads it, and
keeps every segment after it. A note that is missing, damaged or of another log says that nothing is
archived.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.file_table import ARCHIVED
from dledger.base.disk.hints import HintFile, Hints
from dledger.storage.manifests.document import decode_document, encode_document, field_in, place_in
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX

_FORMAT, _VERSION = "dledger-archived", 1


@attrs.frozen(kw_only=True)
class ArchivedNote:
    """
    How far a log is in an archive.

    @ivar end_index: the last entry in the archive.
    @ivar end_position: stream offset in bytes after its record, by which the member knows its own log again.
    @ivar target: the archive, for people.
    """

    end_index: int
    end_position: int
    target: str


def write_note(disk: Disk, directory: str, note: ArchivedNote) -> None:
    """
    Replace the note, durably, if it says something else.

    @param directory: the member's.
    @raise OSError: it cannot be written.
    """
    if read_note(Hints(disk), directory) != note:
        data = encode_document(_FORMAT, _VERSION, "archived", attrs.asdict(note))
        disk.write_file(f"{directory}/{ARCHIVED.name}", data)


def read_note(hints: Hints, directory: str) -> ArchivedNote | None:
    """The note; None if there is none, or if it is not sound or cannot be read."""
    return HintFile(hints, ARCHIVED, directory).read(decode_note)


def decode_note(data: bytes) -> ArchivedNote | None:
    """The note in a file; None if it is not sound."""
    try:
        content = decode_document(data, _FORMAT, _VERSION, "archived")
        return ArchivedNote(end_index=place_in(content, "end_index", INDEX_MAX),
                            end_position=place_in(content, "end_position", POSITION_MAX),
                            target=field_in(content, "target", str))
    except ValueError:
        return None
