# -*- test-case-name: tests.sim.test_bad_pages -*-
"""Pages of the logs of simulated brokers that disks cannot read, until an operator puts them right."""

from __future__ import annotations

import random

import attrs

from dledger.testing.world.host import MachineDisk
from dledger.testing.world.platter import PAGE_BYTES
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE
from protocols.wire.rocketmq.message import Message, decode_message

#: What a broker writes into the rest of a page, of which it knows a part.
_UNKNOWN = b"\xbd" * 64


@attrs.frozen
class BadPage:
    """@ivar path: of the file. @ivar at: bytes before the page. @ivar data: what the page has held."""

    path: str
    at: int
    data: bytes


class BadPages:
    """Those of all machines."""

    def __init__(self) -> None:
        self._pages: dict[str, list[BadPage]] = {}

    def __len__(self) -> int:
        """Number of pages that nobody has looked at since they became bad."""
        return sum(map(len, self._pages.values()))

    def of(self, name: str) -> int:
        """Number of those of a machine."""
        return len(self._pages.get(name, ()))

    def forget(self, name: str) -> None:
        """The machine has another disk."""
        self._pages.pop(name, None)

    def spoil(
        self, name: str, disk: MachineDisk, path: str, *, before: int, rng: random.Random
    ) -> list[Message]:
        """
        A page of a log becomes bad.

        @param name: of the machine. @param path: of the files of its log.
        @param before: the page ends at or before this offset of the log.
        @return: the messages of which a part is in the page; none: there is no such page.
        """
        pages = []
        for whole, data in disk.files_below(path).items():
            number = whole.rpartition("/")[2]
            if number.isdecimal():
                pages += [(whole, int(number), at, data) for at in range(0, len(data), PAGE_BYTES)
                          if int(number) + at + PAGE_BYTES <= before]
        if not pages:
            return []
        whole, base, at, data = rng.choice(sorted(pages, key=lambda one: one[1:3]))
        if any((one.path, one.at) == (whole, at) for one in self._pages.get(name, ())):
            return []
        found = [message for message in _messages(data) if _touches(message, base + at)]
        if found:
            disk.spoil(whole, at)
            self._pages.setdefault(name, []).append(BadPage(whole, at, data[at : at + PAGE_BYTES]))
        return found

    def repair(self, name: str, disk: MachineDisk) -> None:
        """An operator writes what another copy of the log has, while no process runs."""
        for page in self._pages.pop(name, ()):
            data = disk.files_below(page.path.rpartition("/")[0]).get(page.path)
            if data is None:
                continue  # the file has expired
            now = data[page.at : page.at + PAGE_BYTES]
            if disk.is_bad(page.path, page.at) or _UNKNOWN in now:  # else others were written over it
                disk.restore(page.path, page.at, page.data)


def _messages(data: bytes) -> list[Message]:
    """The messages in a file of a log."""
    found, at = [], 0
    while len(data) - at >= START_SIZE:
        size, magic = START.unpack_from(data, at)
        if magic == MAGIC_BLANK or size <= 0 or at + size > len(data):
            break
        found.append(decode_message(data, at))
        at += size
    return found


def _touches(message: Message, begin: int) -> bool:
    end = message.physical_offset + message.size
    return message.physical_offset < begin + PAGE_BYTES and end > begin
