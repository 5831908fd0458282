# -*- test-case-name: tests.base.test_descriptors -*-
"""The limit of descriptors is raised as far as the system allows, and connections leave some of them."""

from __future__ import annotations

import resource

from twisted.trial.unittest import SynchronousTestCase

from dledger.base import descriptors
from dledger.base.descriptors import (
    LEAST,
    LEAST_CONNECTIONS,
    WANTED,
    connections_allowed,
    limit,
    pages_allowed,
    raise_limit,
)


class FakeLimits:
    """The answers of the system."""

    RLIMIT_NOFILE = resource.RLIMIT_NOFILE
    RLIM_INFINITY = resource.RLIM_INFINITY

    def __init__(self, soft: int, hard: int, *, refuses: bool = False) -> None:
        self.limits = (soft, hard)
        self.refuses = refuses

    def getrlimit(self, which: int) -> tuple[int, int]:
        """See L{resource.getrlimit}."""
        return self.limits

    def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
        """See L{resource.setrlimit}."""
        if self.refuses:
            raise ValueError("not allowed to raise maximum limit")
        self.limits = limits


class LimitTests(SynchronousTestCase):
    """Soft and hard limits."""

    def system(self, soft: int, hard: int, **options: bool) -> FakeLimits:
        """A system with these limits."""
        fake = FakeLimits(soft, hard, **options)
        self.patch(descriptors, "resource", fake)
        return fake

    def test_raised(self) -> None:
        """To the hard limit, never above what we want, never lowered."""
        infinite = resource.RLIM_INFINITY
        for soft, hard, expected in (
            (1024, 4096, 4096), (1024, 1 << 20, WANTED), (1024, infinite, WANTED),
            (1 << 20, 1 << 20, 1 << 20), (infinite, infinite, WANTED), (4096, 4096, 4096),
        ):
            fake = self.system(soft, hard)
            self.assertEqual(raise_limit(), expected, (soft, hard))
            self.assertEqual(fake.limits[1], hard)

    def test_refused(self) -> None:
        """The old limit holds."""
        self.system(1024, 4096, refuses=True)
        self.assertEqual(raise_limit(), 1024)

    def test_connections(self) -> None:
        """They leave descriptors for the rest; there are always a few."""
        for soft, expected in ((1024, 1024 - 256), (256, 128), (20, LEAST_CONNECTIONS), (65536, 4096)):
            self.system(soft, soft)
            self.assertEqual((limit(), connections_allowed(4096)), (soft, expected))

    def test_files(self) -> None:
        """Files whose number follows from the limit have their descriptors first."""
        for soft, files, expected in ((1024, 256, 512), (256, 64, 96), (20, 8, LEAST_CONNECTIONS)):
            self.system(soft, soft)
            self.assertEqual(connections_allowed(4096, files=files), expected)

    def test_pages(self) -> None:
        """A part of what connections of clients leave."""
        for soft, expected in ((65536, 64), (1024, 64), (512, 32), (128, 8), (64, 4), (4, 1)):
            self.system(soft, soft)
            self.assertEqual(pages_allowed(), expected)
            if soft >= LEAST:
                self.assertLess(expected, soft - connections_allowed(4096))
