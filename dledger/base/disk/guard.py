# -*- test-case-name: tests.base.test_guard -*-
"""
Whether a store can still be used.

Rule: the first C{OSError} inside L{DiskGuard.storing} ends the use of the store for good. Memory and files
may differ from then on, so nothing is read, written or promised any more.
"""

from __future__ import annotations

from dledger.values.errors import StoreError


class _Storing:
    """A C{with} block of L{DiskGuard.storing}. A generator would cost more than half of a small write."""

    __slots__ = ("_guard", "_what")

    def __init__(self, guard: DiskGuard, what: str) -> None:
        self._guard = guard
        self._what = what

    def __enter__(self) -> None:
        if self._guard.broken:
            self._guard.check()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and isinstance(error, OSError):
            raise self._guard.fail(f"{self._what}: {error}") from error


class DiskGuard:
    """
    @ivar broken: why the store cannot be used any more; empty while it can.
    """

    __slots__ = ("_facts", "_name", "broken")

    def __init__(self, name: str, **facts: object) -> None:
        """
        @param name: of the store, for messages.
        @param facts: of every L{StoreError} that L{fail} makes.
        """
        self.broken = ""
        self._name = name
        self._facts = facts

    def check(self) -> None:
        """@raise StoreError: the store is broken."""
        if self.broken:
            raise StoreError(f"{self._name} has failed before: {self.broken}")

    def storing(self, what: str) -> _Storing:
        """
        A C{with} block in which an C{OSError} breaks the store.

        @param what: what is done in the block, for the message.
        @raise StoreError: on entry, if the store is broken; else in place of the C{OSError}.
        """
        return _Storing(self, what)

    def fail(self, why: str) -> StoreError:
        """The store cannot be used any more; the first reason stays. @return: the error that says so."""
        self.broken = self.broken or why
        return StoreError(self.broken, **self._facts)
