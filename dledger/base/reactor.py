# -*- test-case-name: tests.base -*-
"""The type of a whole reactor."""

from __future__ import annotations

from typing import Any, TypeAlias

#: A reactor with all that a process needs: C{IReactorCore}, C{IReactorTime}, C{IReactorTCP},
#: C{IReactorThreads} and C{running}. zope.interface has no type for several interfaces at once.
Reactor: TypeAlias = Any
