# -*- test-case-name: tests.node.test_tracing -*-
"""
A state machine whose calls of C{apply} are spans: the last part of what L{dledger.node.work.tracing} shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import isgeneratorfunction

from dledger.client.values import Entry
from dledger.machine.state_machine import MachineFactory, StateMachine
from dledger.node.work.tracing import OpenSpans


class TracedMachine(StateMachine):
    """Passes everything on to another machine, and keeps its name and version."""

    def __init__(self, machine: StateMachine, trace: OpenSpans) -> None:
        self._machine = machine
        self._trace = trace
        self.name = machine.name
        self.version = machine.version
        self.oldest_version = machine.oldest_version
        self.newest_only = machine.newest_only
        self.takes_many = machine.takes_many or isgeneratorfunction(machine.apply)

    def apply(self, entries: Sequence[Entry]) -> Iterable[bytes]:
        """See L{StateMachine.apply}. The span ends with the last result, or the exception."""
        first = entries[0]
        span = self._trace.begin("apply", {
            "first_index": first.index, "count": len(entries), "term": entries[-1].term,
            "bytes": sum(len(entry.body) for entry in entries),
        }, self._trace.root_with(first.index))
        try:
            results = self._machine.apply(entries)
        except BaseException:
            self._trace.end(span, result="failed")
            raise
        return self._traced(span, results)

    def _traced(self, span: object | None, results: Iterable[bytes]) -> Iterator[bytes]:
        result = "failed"
        try:
            yield from results
            result = "applied"
        finally:
            self._trace.end(span, result=result)

    def query(self, request: bytes) -> bytes:
        return self._machine.query(request)

    def snapshot(self) -> Iterable[bytes]:
        return self._machine.snapshot()

    def digest(self) -> bytes | None:
        return self._machine.digest()

    @property
    def restore(self) -> Callable[..., None]:
        return self._machine.restore


def traced_factory(factory: MachineFactory, trace: OpenSpans) -> MachineFactory:
    """Makes the machines of C{factory}, traced."""
    return lambda: TracedMachine(factory(), trace)
