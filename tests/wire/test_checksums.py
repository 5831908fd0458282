# -*- test-case-name: tests.wire.test_checksums -*-
"""The checksum of records, with and without the library that computes it fast."""

from __future__ import annotations

import importlib
import random
import sys
import zlib
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire import checksums


class ChecksumTests(SynchronousTestCase):
    def test_sums_are_those_of_zlib(self) -> None:
        """Every length up to a few cache lines, some long ones; views at odd places; sums that go on."""
        rng = random.Random(1)
        data = rng.randbytes(70_000)
        for size in (*range(300), 4095, 4096, 4097, 65_536):
            start = rng.randrange(4)
            piece = memoryview(data)[start : start + size]
            seed = rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF))
            for form in (piece, bytes(piece), bytearray(piece)):
                self.assertEqual(checksums.crc32(form), zlib.crc32(form), size)
                self.assertEqual(checksums.crc32(form, seed), zlib.crc32(form, seed), (size, seed))

    def test_without_the_library_it_is_that_of_zlib(self) -> None:
        self.addCleanup(importlib.reload, checksums)
        with mock.patch.dict(sys.modules, {"isal": None, "isal.isal_zlib": None}):
            importlib.reload(checksums)
            self.assertIs(checksums.crc32, zlib.crc32)
