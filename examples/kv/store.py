"""
A key-value store as a state machine: put, get, delete, and compare-and-set.

Run every member of a group with it::

    PYTHONPATH=examples/kv twistd -n dledger --machine store:KeyValueStore ...

A command and a result are JSON. C{command()} makes a command; any other body of the log changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from dledger import Entry
from dledger.machine import StateMachine

#: Bytes of one piece of a snapshot. Values may be long: a member takes no piece above 4 MiB.
PIECE_BYTES = 1024 * 1024


def command(does: str, key: str, **more: object) -> bytes:
    """A command: C{put} with C{value}, C{delete}, or C{set_if} with C{expected} (None: no such key)."""
    return json.dumps({"does": does, "key": key, **more}, sort_keys=True).encode()


class KeyValueStore(StateMachine):
    """
    Keys and values are texts. Each value has the index of the entry that wrote it.

    A result: C{{"done": true, "index": 7}}, or C{{"done": false, "reason": "..."}}.
    """

    name = "kv"
    version = 2

    def __init__(self) -> None:
        self._pairs: dict[str, tuple[str, int]] = {}

    def apply(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """One result after the other; see L{StateMachine}."""
        for entry in entries:
            reason = self._apply(entry)
            done: dict[str, object] = {"done": not reason, "index": entry.index}
            yield json.dumps({**done, "reason": reason} if reason else done).encode()

    def _apply(self, entry: Entry) -> str:
        """Apply one command. @return: why it changed nothing; empty if it did."""
        try:
            asked = json.loads(entry.body)
            does, key, value = asked["does"], asked["key"], asked.get("value", "")
            expected = asked.get("expected")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return "no command of this store"
        if not isinstance(key, str) or not isinstance(value, str):
            return "a key and a value are texts"
        found, _ = self._pairs.get(key, (None, -1))
        if does == "set_if" and found != expected:
            return "another value" if found is not None else "no such key"
        if does in ("put", "set_if"):
            self._pairs[key] = (value, entry.index)
        elif does == "delete":
            if found is None:
                return "no such key"
            del self._pairs[key]
        else:
            return "put, delete and set_if are allowed"
        return ""

    def query(self, request: bytes) -> bytes:
        """
        The request is a key: its value and the index of the entry that wrote it, or null. An empty request:
        all pairs.
        """
        if not request:
            values = {key: value for key, (value, _) in self._pairs.items()}
            return json.dumps(values, sort_keys=True).encode()
        found = self._pairs.get(request.decode("utf-8", "replace"))
        return json.dumps(None if found is None else {"value": found[0], "index": found[1]}).encode()

    def snapshot(self) -> Iterable[bytes]:
        """A copy of the table, a line for each pair. (The copy has the keys and values by reference.)"""
        pairs = list(self._pairs.items())

        def pieces() -> Iterator[bytes]:
            held = bytearray()
            for key, (value, index) in pairs:
                held += json.dumps([key, value, index]).encode() + b"\n"
                while len(held) >= PIECE_BYTES:
                    yield bytes(held[:PIECE_BYTES])
                    del held[:PIECE_BYTES]
            if held:
                yield bytes(held)

        return pieces()

    def restore(self, chunks: Iterable[bytes]) -> None:
        """The table again. A line may go on in the next chunk."""
        held = b""
        for chunk in chunks:
            *lines, held = (held + chunk).split(b"\n")
            for line in lines:
                key, value, index = json.loads(line)
                self._pairs[key] = (value, index)
        if held:
            raise ValueError("the last line is cut")
