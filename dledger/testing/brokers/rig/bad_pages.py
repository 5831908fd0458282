# -*- test-case-name: tests.sim.test_bad_pages -*-
"""Pages of the logs of simulated brokers that disks cannot read, until an operator puts them right."""

from __future__ import annotations

import random

import attrs

from dledger.testing.brokers.rig.states import NO_MESSAGE
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.platter import PAGE_BYTES
from protocols.wire.ledger.entry import BLANK_MAGIC
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
        self, name: str, disk: MachineDisk, path: str, *, before: int, rng: random.Random, lead: int = 0
    ) -> list[Message]:
        """
        A page of a log becomes bad.

        @param name: of the machine. @param path: of the files of its log.
        @param before: the page ends at or before this offset of the log.
        @param lead: bytes before each record in its entry; 0: there are no entries.
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
        found = [message for message in _messages(data, lead) if _touches(message, base + at, lead)]
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


def _messages(data: bytes, lead: int) -> list[Message]:
    """The messages in a file of a log, without what strangers have appended."""
    found, at = [], 0
    while len(data) - at >= START_SIZE:
        first, second = START.unpack_from(data, at)
        # An entry of a raft log has the magic first, a record its size.
        size, is_blank = (second, first == BLANK_MAGIC) if lead else (first, second == MAGIC_BLANK)
        if is_blank or size <= 0 or at + size > len(data):
            break
        if not data.startswith(NO_MESSAGE, at + lead):
            found.append(decode_message(data[at + lead : at + size]))
        at += size
    return found


def _touches(message: Message, begin: int, lead: int) -> bool:
    end = message.physical_offset + message.size
    return message.physical_offset - lead < begin + PAGE_BYTES and end > begin
