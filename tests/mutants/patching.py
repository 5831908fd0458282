# -*- test-case-name: tests.sim.test_mutants -*-
"""
Modules that are imported with some of their lines changed.

A patch names a module, the text to replace and its replacement. Rule: the source holds the text exactly
once; otherwise the mutant is out of date and must be rewritten.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

import attrs


class PatternNotFound(Exception):
    """The source does not hold the text of a patch exactly once."""


class Change(Protocol):
    """A change of the source of one module."""

    @property
    def module(self) -> str:
        """Its name."""

    def apply(self, source: str) -> str:
        """The source with the change."""


@attrs.frozen
class Patch:
    """Replace C{old} by C{new} in the source of C{module}."""

    module: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """
        The source with the replacement.

        @raise PatternNotFound: the source does not hold C{old} exactly once.
        """
        count = source.count(self.old)
        if count != 1:
            raise PatternNotFound(f"{self.module}: {count} times {self.old!r}, once is needed")
        return source.replace(self.old, self.new)


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the patched source; nothing is cached."""

    def __init__(self, name: str, path: str, patches: Sequence[Change]) -> None:
        super().__init__(name, path)
        self._patches = patches

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        source = self.get_data(self.path).decode()
        for patch in self._patches:
            source = patch.apply(source)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that have patches."""

    def __init__(self, patches: Sequence[Change]) -> None:
        self._patches: dict[str, list[Change]] = {}
        for patch in patches:
            self._patches.setdefault(patch.module, []).append(patch)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See L{importlib.abc.MetaPathFinder.find_spec}."""
        if fullname not in self._patches:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert found is not None and found.origin is not None, fullname
        loader = _Loader(fullname, found.origin, self._patches[fullname])
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


def install(patches: Sequence[Change]) -> None:
    """Import these modules with their patches from now on. They must not be loaded yet."""
    for patch in patches:
        assert patch.module not in sys.modules, f"{patch.module} is loaded already"
    sys.meta_path.insert(0, _Finder(patches))


def check(patches: Sequence[Patch]) -> None:
    """
    Check that every pattern is found, without importing anything.

    @raise PatternNotFound: one is not.
    @raise SyntaxError: the result does not compile.
    """
    sources: dict[str, str] = {}
    for patch in patches:
        if patch.module not in sources:
            spec = importlib.util.find_spec(patch.module)
            assert spec is not None and spec.origin is not None, patch.module
            with open(spec.origin, encoding="utf-8") as file:
                sources[patch.module] = file.read()
        sources[patch.module] = patch.apply(sources[patch.module])
    for module, source in sources.items():
        compile(source, module, "exec", dont_inherit=True)
