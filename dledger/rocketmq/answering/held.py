# -*- test-case-name: tests.base.commands.test_held -*-
"""
Requests that wait for an answer until something arrives: pulls and pops.

The owner decides when a request is held, and how it is answered. This table knows which ones wait for what,
which are of a connection, and which have been woken and are to be looked at again, each once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator
from typing import Generic, TypeVar

import attrs

from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

_Key = TypeVar("_Key", bound=Hashable)


@attrs.define(eq=False)
class HeldRequest:
    """
    What all held requests have.

    @ivar deadline_s: by the owner's clock; then it is answered with nothing.
    @ivar is_woken: it waits to be looked at again.
    """

    connection: CommandConnection
    request: RemotingCommand
    deadline_s: float
    is_woken: bool = attrs.field(default=False, kw_only=True)


_Held = TypeVar("_Held", bound=HeldRequest)


class HeldRequests(Generic[_Key, _Held]):
    """
    Held requests, by their keys and by their connections.

    @ivar by_key: what requests wait for, each with those that do; others only read it.

    Invariant: a held request is in C{by_key}, in C{_by_connection} and in C{_keys}; an answered one is in
    none of them. A woken one may have been answered meanwhile: L{woken} leaves it out.
    """

    def __init__(self) -> None:
        self.by_key: dict[_Key, dict[_Held, None]] = {}
        self._by_connection: dict[CommandConnection, dict[_Held, None]] = {}
        self._keys: dict[_Held, _Key] = {}
        self._woken: deque[_Held] = deque()

    def __len__(self) -> int:
        """Number of held requests."""
        return len(self._keys)

    def __contains__(self, held: _Held) -> bool:
        """Whether a request is held."""
        return held in self._keys

    def __iter__(self) -> Iterator[_Held]:
        """Those that are held now, without those that are released before their turn comes."""
        for held in list(self._keys):
            if held in self._keys:
                yield held

    def of(self, key: _Key) -> Collection[_Held]:
        """Those that wait for C{key}, the first one first. It changes when one is held or released."""
        return self.by_key.get(key, {}).keys()

    def of_connection(self, connection: CommandConnection) -> list[_Held]:
        """Those of a connection as they are now."""
        return list(self._by_connection.get(connection, ()))

    def due(self, now_s: float) -> Iterator[_Held]:
        """Those whose deadline has passed, as L{__iter__} gives them."""
        return (held for held in self if held.deadline_s <= now_s)

    def hold(self, key: _Key, held: _Held) -> None:
        """Hold one that is not held."""
        self.by_key.setdefault(key, {})[held] = None
        self._by_connection.setdefault(held.connection, {})[held] = None
        self._keys[held] = key

    def release(self, held: _Held) -> bool:
        """
        Release one that is held.

        @return: whether it was the last one that waited for its key.
        """
        key, connection = self._keys.pop(held), held.connection
        del self.by_key[key][held], self._by_connection[connection][held]
        if not self._by_connection[connection]:
            del self._by_connection[connection]
        if self.by_key[key]:
            return False
        del self.by_key[key]
        return True

    def wake(self, held: _Held) -> None:
        """Have one looked at again, once, however often it is woken before."""
        if not held.is_woken:
            held.is_woken = True
            self._woken.append(held)

    @property
    def has_woken(self) -> bool:
        """Whether there is one to be looked at again."""
        return bool(self._woken)

    def woken(self, most: int) -> Iterator[_Held]:
        """
        Those that are to be looked at again now and are still held, in the order in which they were woken.
        What is woken meanwhile comes the next time; what is not asked for stays.
        """
        for _ in range(min(len(self._woken), most)):
            held = self._woken.popleft()
            held.is_woken = False
            if held in self._keys:
                yield held

    def forget_woken(self) -> None:
        """None is looked at again."""
        self._woken.clear()
