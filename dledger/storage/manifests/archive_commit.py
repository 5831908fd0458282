# -*- test-case-name: tests.storage.test_writers -*-
"""
Writing the manifests of an archive, one generation after the other.

Rule 1: a manifest is begun only if the one that counts is still the one that it goes on from, and only under
a free name below C{generations}. So of two programs that go on from the same manifest one succeeds. A program
that slept meanwhile may put an old manifest into a slot, where it does not count: the later one is below
C{generations}.
Rule 2: nothing is held between two manifests, so a program that ended in the middle keeps no other out.
Rule 3: of the files below C{generations}, the newest and the one before it stay.
"""

from __future__ import annotations

import attrs

from dledger.storage.manifests.archive_manifest import (
    GENERATIONS,
    ArchiveBusy,
    ArchiveManifest,
    encode_archive_manifest,
    generation_name,
    generation_of,
    read_archive,
)
from dledger.storage.manifests.archive_place import ArchivePlace


class Commits:
    """
    The manifests of one archive, for one run.

    @ivar manifest: the one that counts, as this run knows it; None if there is none.
    @ivar trouble: see L{ArchiveState}; as at the begin of the run.
    """

    def __init__(self, place: ArchivePlace) -> None:
        """@raise DirectoryError, ArchiveTargetError: see L{read_archive}."""
        self._place = place
        state = read_archive(place.disk, place.directory, reads_all=True)
        self.manifest = state.manifest
        self._newest = state.newest
        self._slotted = state.slotted
        self.trouble = state.trouble

    def mended(self) -> ArchiveManifest:
        """The manifest that counts, in both slots and below C{generations} if any of them is not sound."""
        assert self.manifest is not None
        if self.trouble:
            self.commit(self.manifest)
            self.commit(self.manifest)
            self.trouble = ()
        elif self._slotted < self.manifest.generation:  # a run ended between the two
            self._place.replace(self.manifest.slot_name, encode_archive_manifest(self.manifest))
        return self.manifest

    def commit(self, manifest: ArchiveManifest) -> ArchiveManifest:
        """
        Let a manifest count.

        @param manifest: made of the one that counts; its generation is not used.
        @return: as it was written.
        @raise ArchiveBusy: another program has written one.
        @raise ValueError: its pieces do not follow each other. Nothing was written.
        """
        place, before = self._place, self.manifest
        now = read_archive(place.disk, place.directory)
        if now.manifest != before or now.newest != self._newest:
            raise self._busy()
        manifest = attrs.evolve(manifest, generation=self._newest + 1)
        data = encode_archive_manifest(manifest)
        try:
            place.create(manifest.name, data)
        except FileExistsError:
            # A store may write the file, answer with an error, and be asked again by its client.
            if self._bytes_of(manifest.name) != data:
                raise self._busy() from None
        known = self._known()
        if known[-1:] != [manifest.generation]:
            raise self._busy()  # the name was free again: others have gone on meanwhile, and removed theirs
        place.replace(manifest.slot_name, data)
        self.manifest = manifest
        self._newest = manifest.generation
        oldest = 0 if before is None else before.generation
        for generation in known:
            if generation < oldest:
                place.remove(generation_name(generation))
        return manifest

    def _known(self) -> list[int]:
        """The generations that have a file, the lowest first."""
        place = self._place
        names = place.disk.listdir(f"{place.directory}/{GENERATIONS}")
        return sorted(one for one in map(generation_of, names) if one >= 0)

    def _bytes_of(self, name: str) -> bytes | None:
        try:
            return self._place.disk.read_file(f"{self._place.directory}/{name}")
        except FileNotFoundError:
            return None

    def _busy(self) -> ArchiveBusy:
        return ArchiveBusy(
            f"{self._place.directory} was changed by another program meanwhile: one dledger archive "
            "or backup at a time may write there. Nothing is lost: end the other one, then give the same "
            "command again"
        )
