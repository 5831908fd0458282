# -*- test-case-name: tests.broker.metadata.test_order_info -*-
"""
What groups that pop in order hold: in each queue the messages of the last pop, until when they are invisible,
and which of them are done. Until all are done, or visible again, nobody else of the group gets messages of
the queue. C{consumerOrderInfo.json}, as RocketMQ 5.x writes it; on a raft log its changes are in the log.

Rule 1: the committed offset of the group stays at the first message that is not done, so a broker
that has lost this table begins there, and no message is passed over.
Rule 2: the table is bounded (L{ORDERS_MAX}); what nobody has popped for a day goes.

Source: ConsumerOrderInfoManager (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs

from dledger.rocketmq.answering.java_json import file_json, read_document, to_long
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import INT_BITS, JsonObject, shown, to_int

#: Queues of groups in the table.
ORDERS_MAX = 65_536
#: A place without a pop for so long goes, as in RocketMQ.
FORGOTTEN_MS = 24 * 3600 * 1000
#: Messages of one place: RocketMQ keeps a bit for each.
MESSAGES_MAX = 63

#: Topic, group and number of a queue.
OrderPlace = tuple[str, str, int]


@attrs.frozen(kw_only=True)
class OrderInfo:
    """
    The last pop of a group in a queue. Times are milliseconds since 1970.

    @ivar offsets: queue offsets of its messages, ascending.
    @ivar done: of them, those that are acknowledged.
    @ivar visible_ms: by offset, when a message is visible that was given another time.
    @ivar tries: by offset, how often a message was popped before; those above 0.
    @ivar attempt: names the pop: it may be asked again, and is answered with the same messages.
    @ivar last_ms: when it was popped.
    """

    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    done: frozenset[int] = frozenset()
    visible_ms: Mapping[int, int] = attrs.Factory(dict)
    tries: Mapping[int, int] = attrs.Factory(dict)
    attempt: str = ""
    last_ms: int = 0

    @property
    def next_offset(self) -> int:
        """The first message that is not done; after the last one if all are."""
        return next((one for one in self.offsets if one not in self.done), self.offsets[-1] + 1)

    def free_ms(self) -> int:
        """When the last message that is not done is visible again; 0: all are done."""
        return max(
            (self.visible_ms.get(one, self.pop_ms + self.invisible_ms)
             for one in self.offsets if one not in self.done), default=0,
        )

    def document(self) -> JsonObject:
        """As RocketMQ writes it: offsets after the first as differences, done as bits."""
        first = self.offsets[0]
        found: JsonObject = {
            "popTime": self.pop_ms, "i": self.invisible_ms,
            "o": [first, *(one - first for one in self.offsets[1:])],
            "l": self.last_ms,
            "cm": sum(1 << bit for bit, one in enumerate(self.offsets) if one in self.done),
        }
        if self.visible_ms:
            found["ot"] = {str(key): value for key, value in self.visible_ms.items()}
        if self.tries:
            found["oc"] = {str(key): value for key, value in self.tries.items()}
        if self.attempt:
            found["a"] = self.attempt
        return found

    @classmethod
    def read(cls, document: JsonObject) -> OrderInfo:
        """@raise BodyError: it is malformed."""
        listed, attempt = document.get("o"), document.get("a") or ""
        is_sound = isinstance(listed, list) and 0 < len(listed) <= MESSAGES_MAX
        if not isinstance(listed, list) or not is_sound or not isinstance(attempt, str):
            raise BodyError(f"o is not a list of 1 to {MESSAGES_MAX} offsets, or a is not a text")
        first, *away = (to_long(one, "item of o") for one in listed)
        offsets = (first, *(first + one for one in away))
        done = to_long(document.get("cm") or 0, "cm")
        return cls(
            pop_ms=to_long(document.get("popTime"), "popTime"), offsets=offsets, attempt=attempt,
            invisible_ms=to_long(document.get("i") or 0, "i"), last_ms=to_long(document.get("l") or 0, "l"),
            done=frozenset(one for bit, one in enumerate(offsets) if done >> bit & 1),
            visible_ms=_numbers(document.get("ot"), "ot"), tries=_numbers(document.get("oc"), "oc"),
        )


def _numbers(value: object, name: str) -> dict[int, int]:
    found = {}
    for key, number in ({} if value is None else to_object(value, name)).items():
        if not (key.isascii() and key.isdigit() and len(key) < 19):
            raise BodyError(f"{name}: {shown(key)} is not an offset")
        found[int(key)] = to_long(number, f"{name}, {key}")
    return found


class OrderInfos:
    """
    The table. See L{dledger.rocketmq.metadata.tables.FileTable} and
    L{dledger.rocketmq.metadata.tables.LoggedTable}.
    """

    file_name: ClassVar[str] = "consumerOrderInfo.json"

    def __init__(self) -> None:
        self.is_dirty = False
        self.changed: dict[str, None] = {}
        self._table: dict[str, dict[int, OrderInfo]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Number of places."""
        return self._count

    def get(self, place: OrderPlace) -> OrderInfo | None:
        """What a group holds of a queue; None: nothing, or it is forgotten."""
        topic, group, queue_id = place
        return self._table.get(f"{topic}@{group}", {}).get(queue_id)

    def of(self, topic: str, group: str) -> Mapping[int, OrderInfo]:
        """What a group holds of a topic, by queue."""
        return self._table.get(f"{topic}@{group}", {})

    def held(self) -> int:
        """Number of messages that groups hold."""
        infos = (info for queues in self._table.values() for info in queues.values())
        return sum(len(info.offsets) - len(info.done) for info in infos)

    def has_room(self, place: OrderPlace) -> bool:
        """Whether L{put} may be called."""
        return self._count < ORDERS_MAX or self.get(place) is not None

    def put(self, place: OrderPlace, info: OrderInfo) -> None:
        """A group has popped, or has acknowledged some."""
        topic, group, queue_id = place
        key = f"{topic}@{group}"
        queues = self._table.setdefault(key, {})
        self._count += queue_id not in queues
        queues[queue_id] = info
        self._note(key)

    def clear(self, place: OrderPlace) -> None:
        """What the group holds of a queue does not count any more: its offset was set by somebody else."""
        topic, group, queue_id = place
        self._forget(f"{topic}@{group}", lambda number, _: number == queue_id)

    def delete_topic(self, topic: str) -> None:
        """A topic is deleted: the offsets of what groups hold mean other messages in the next of its name."""
        for key in [key for key in self._table if key.rpartition("@")[0] == topic]:
            self._forget(key, lambda *_: True)

    def delete_group(self, group: str) -> None:
        """A group and its offsets are deleted."""
        for key in [key for key in self._table if key.rpartition("@")[2] == group]:
            self._forget(key, lambda *_: True)

    def expire(self, now_ms: int, lives: Callable[[str, str], bool]) -> None:
        """
        Forget the places of old pops.

        @param lives: whether a topic and a group exist.
        """
        for key in list(self._table):
            topic, _, group = key.rpartition("@")
            if lives(topic, group):
                self._forget(key, lambda _, info: now_ms - info.last_ms > FORGOTTEN_MS)
            else:
                self._forget(key, lambda *_: True)

    def _forget(self, key: str, is_over: Callable[[int, OrderInfo], bool]) -> None:
        queues = self._table.get(key, {})
        gone = [number for number, info in queues.items() if is_over(number, info)]
        for number in gone:
            del queues[number]
        self._count -= len(gone)
        if gone:
            self._note(key)
        if not queues:
            self._table.pop(key, None)

    def _note(self, key: str) -> None:
        self.is_dirty = True
        self.changed.pop(key, None)
        self.changed[key] = None

    # -- the file, and the log -----------------------------------------------------------------------

    def file_bytes(self) -> bytes:
        """See L{FileTable.file_bytes}."""
        return file_json({"table": {key: self._entry(queues) for key, queues in self._table.items()}})

    def _entry(self, queues: Mapping[int, OrderInfo]) -> JsonObject:
        return {str(number): info.document() for number, info in queues.items()}

    def load(self, data: bytes) -> None:
        """See L{FileTable.load}."""
        table = to_object(read_document(data).get("table"), "table")
        self._table = {key: queues for key, value in table.items() if (queues := _read_queues(key, value))}
        self._count = sum(map(len, self._table.values()))
        self.is_dirty = False

    def names(self) -> list[str]:
        """See L{LoggedTable.names}."""
        return list(self._table)

    def logged(self, name: str) -> object:
        """See L{LoggedTable.logged}."""
        queues = self._table.get(name)
        return None if queues is None else self._entry(queues)

    def logged_version(self) -> object:
        """See L{LoggedTable.logged_version}."""
        return None

    def apply(self, changes: JsonObject, version: object) -> None:
        """See L{LoggedTable.apply}."""
        read = {key: {} if value is None else _read_queues(key, value) for key, value in changes.items()}
        for key, queues in read.items():
            self._count += len(queues) - len(self._table.pop(key, {}))
            if queues:
                self._table[key] = queues
        self.is_dirty = True


def _read_queues(key: str, value: object) -> dict[int, OrderInfo]:
    found = {}
    for text, one in to_object(value, f"places of {shown(key)}").items():
        number = to_int(text, INT_BITS, f"queue of {shown(key)}")
        if number is None or number < 0:
            raise BodyError(f"{shown(key)}: {shown(text)} is not a number of a queue")
        document = to_object(one, f"{shown(key)}, queue {number}")
        if document.get("o"):  # RocketMQ keeps places without messages, too
            found[number] = OrderInfo.read(document)
    return found
