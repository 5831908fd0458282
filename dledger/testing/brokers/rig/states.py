# -*- test-case-name: tests.sim.test_pairs -*-
"""
What the files and tables of a broker say, and whether they fit together.

B7. The consume queues of a broker are the fold of its log, from the beginning of each topic on; neither they
nor its index are further than its log.
B8. In the end a slave's log is its master's, from the slave's first file on, and so are its topics, groups,
request modes, and offsets of consumers and delay levels, except entries that it keeps by rule, and higher
offsets that consumers committed at it.
B9. An offset of a consumer goes back only by a reset, by a commit of a lower one, with the deletion of its
topic, at a start, or if it is after the end of its queue then; at a slave, as its master's does, or if an
earlier process of it had the offset: a slave does not write down which ones were committed at it.
B10. Every acknowledged message is found by its key, on every broker.
B27. When a broker has stopped in order, its log, queues, index and tables are on stable storage.
B21. A log begins after no file that is younger than the retention, unless a disk was full.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Iterator, Set

from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import GroupConfig, TopicConfig
from dledger.rocketmq.store.records.key_hash import hash_of_key
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.testing.brokers.rig.accounts import ProducedMessage, require_pair
from dledger.testing.brokers.rig.machine import SMALL, BrokerMachine
from dledger.testing.world.host import MachineDisk
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.entry import BLANK_MAGIC
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE
from protocols.wire.rocketmq.message import Message, decode_message

#: Group, topic and number of a queue.
OffsetKey = tuple[str, str, int]
#: A master's offset that goes back is at its slave after this time.
COPIED_US = 25_000_000
#: Age of a file that is old enough, seconds: longer than the shortest retention, which is an hour, and than
#: that of a member under a broker, which keeps its files for an hour more.
AGED_S = 8000.0
#: Units of a file of a queue.
QUEUE_FILE_UNITS = int(str(SMALL["mapped_file_size_consume_queue"])) // UNIT_SIZE
#: Begins the body of an entry of a raft log that is not a message.
NO_MESSAGE = b"no message"
#: What a broker keeps besides its log, and the file that is there until it has ended in order.
INDEX_PATH = "/store/index"
QUEUES_PATH = "/store/consumequeue"
STORED_PATHS = (QUEUES_PATH, INDEX_PATH, "/store/config")
ABORT_PATH = "/store/abort"
LOG_FILE_BYTES = int(str(SMALL["mapped_file_size_commit_log"]))


def records_of(parts: BrokerParts) -> Iterator[Message]:
    """
    All messages in the log of a broker, a plain one or a raft log, those without a queue among them. An entry
    of a raft log may be none.
    """
    log = parts.store.log
    at, lead = log.begin_offset, log.record_lead
    while at + lead + START_SIZE <= log.record_end:
        first, second = START.unpack(log.read(at, START_SIZE))
        # An entry of a raft log has the magic first, a record its size.
        size, is_blank = (second, first == BLANK_MAGIC) if lead else (first, second == MAGIC_BLANK)
        if is_blank:
            at += log.file_size - at % log.file_size
            continue
        record = log.read(at + lead, size - lead)
        at += size
        if lead and record[:len(NO_MESSAGE)] == NO_MESSAGE:
            continue
        yield decode_message(record)


def check_queues(name: str, parts: BrokerParts, *, without: Set[str] = frozenset()) -> None:
    """B7. @param name: of the broker. @param without: topics that are not judged."""
    store, topics, place_of = parts.store, parts.metadata.topics, parts.store.deleted.place_of
    fold: dict[tuple[str, int], dict[int, int]] = {}
    for message in records_of(parts):
        key = message.topic, message.queue_id
        if message.topic in without:
            continue
        queue = fold.setdefault(key, {})
        if message.queue_offset == 0:
            queue.clear()  # of a topic that was made again
        queue[message.queue_offset] = message.physical_offset
    for key in (key for key in store.queues.keys() if key[0] not in without):
        found = store.queues.get(*key)
        assert found is not None
        begin = store.deleted.begin_of(key[0], found)
        units = found.read(begin, found.next_index - begin)
        # The queues of a raft log follow its begin a second later; until then nobody gets those messages.
        first = store.log.begin_offset if store.log.record_lead else 0
        queue = {unit.queue_offset: unit.offset for unit in units if unit.offset >= first}
        begins_at = place_of(key[0])
        wanted = {
            at: offset for at, offset in fold.get(key, {}).items() if offset >= begins_at
        }
        require_pair(queue == wanted or topics.get(key[0]) is None, 7,
                     f"{name}: queue {key} is {_differing(queue, wanted)}")
    for key, wanted in fold.items():
        is_shown = topics.get(key[0]) is not None
        latest = max(wanted.values())
        require_pair(not is_shown or latest < place_of(key[0]) or store.queues.get(*key) is not None,
                     7, f"{name}: {key} has messages up to {latest}, and no queue")


def check_ahead(name: str, parts: BrokerParts) -> None:
    """
    B7: the queues and the index by key have nothing that the log has not: after a cut they would take the
    records that come there for known ones.

    @param name: of the broker.
    """
    store = parts.store
    end = store.log.record_end
    indexed = 0 if store.indexing is None else store.indexing.index.offset
    require_pair(store.dispatcher.offset <= end and indexed <= end, 7,
                 f"{name} has dispatched its log up to {store.dispatcher.offset}, and put it into the index "
                 f"up to {indexed}; it ends at {end}")


def has_ended_in_order(machine: BrokerMachine) -> bool:
    """Whether a store says so: its abort file is gone."""
    return not machine.disk.exists(ABORT_PATH)


def check_stopped(
    machine: BrokerMachine, log_path: str,
    log_has_ended: Callable[[BrokerMachine], bool] = has_ended_in_order,
) -> None:
    """
    B27, of a process that has been stopped and says that it ended in order. (An index that could not be
    written is built again: it is not judged where a disk was made to fail. Queues are not where somebody has
    put back the marks of earlier ones. A process that was killed may have left a part of a new table.)

    @param log_path: of the files of its log. @param log_has_ended: whether it says so of its log.
    """
    disk = machine.disk
    if disk.death is not None:
        return
    paths = (
        *((log_path,) if log_has_ended(machine) else ()),
        *(STORED_PATHS if has_ended_in_order(machine) else ()),
    )
    left = [
        name for path in paths
        if not (machine.may_fail and path == INDEX_PATH or machine.has_old_marks and path == QUEUES_PATH)
        for name, data in disk.files_below(path).items()
        if not (disk.is_durable(name, 0, len(data)) or name.endswith(".tmp"))
    ]
    require_pair(not left, 27, f"{machine.name} has stopped in order, and {left} are not on stable storage")


def check_expired(name: str, parts: BrokerParts) -> None:
    """
    B21, of queues: of files with units of expired messages alone, one is left at most: the one that was the
    queue's last when its messages expired.

    @param name: of the broker.
    """
    store = parts.store
    for key in store.queues.keys():
        queue = store.queues.get(*key)
        assert queue is not None
        last = queue.begin_index - queue.begin_index % QUEUE_FILE_UNITS + 2 * QUEUE_FILE_UNITS - 1
        for unit in queue.read(last, 1) if last < queue.next_index - 1 else ():
            require_pair(unit.offset >= store.log.begin_offset, 21,
                         f"{name} keeps the units of queue {key} up to {last}, of a message at "
                         f"{unit.offset}; its log begins at {store.log.begin_offset}")


def _differing(queue: dict[int, int], wanted: dict[int, int]) -> str:
    lacks = sorted(wanted.items() - queue.items())[:4]
    has = sorted(queue.items() - wanted.items())[:4]
    return f"without {lacks}, and with {has}; it has {len(queue)}, and should have {len(wanted)}"


def log_difference(master: BrokerParts, slave: BrokerParts) -> str:
    """Why the logs are not equal; empty if they are."""
    one, other = master.store.log, slave.store.log
    if one.end_offset != other.end_offset:
        return f"the master's log ends at {one.end_offset}, the slave's at {other.end_offset}"
    begin = max(one.begin_offset, other.begin_offset)
    for at in range(begin, one.end_offset, 4096):
        size = min(4096, one.end_offset - at)
        if one.read(at, size) != other.read(at, size):
            return f"the logs differ between {at} and {at + size}"
    return ""


def metadata_difference(
    master: Metadata, slave: Metadata, *, was_promoted: bool = False,
    committed: Callable[[OffsetKey], Container[int]] = lambda key: (),
) -> str:
    """
    What a slave's tables still lack; empty if nothing.

    @param was_promoted: the slave may be a former master, or the master have older tables: the slave keeps
        offsets that the master does not know.
    @param committed: the offsets that consumers have committed at this slave.
    """
    difference = table_difference(master, slave)
    if difference:
        return difference
    difference = _offset_difference(master, slave, was_promoted=was_promoted, committed=committed)
    if difference:
        return difference
    theirs_at, ours_at_level = master.delay_offsets.names(), slave.delay_offsets
    for level in map(int, theirs_at):
        if ours_at_level.get(level) != master.delay_offsets.get(level):
            return f"delay level {level} is {master.delay_offsets.get(level)}, {ours_at_level.get(level)}"
    if master.request_modes.file_bytes() != slave.request_modes.file_bytes():
        return "the request modes differ"
    return ""


def table_difference(master: Metadata, slave: Metadata) -> str:
    """What a slave's topics and groups lack; empty if nothing."""
    for name, ours, theirs, kept in (
        ("topic", slave.topics.entries, master.topics.entries, slave.topics.kept),
        ("group", slave.groups.entries, master.groups.entries, slave.groups.kept),
    ):
        for key, entry in theirs.items():
            if _document(ours.get(key)) != _document(entry):
                return f"{name} {key} is {entry} at the master, {ours.get(key)} at the slave"
        more = ours.keys() - theirs.keys() - set(kept)
        if more:
            return f"{name}s {sorted(more)} are at the slave only"
    return ""


def _document(entry: TopicConfig | GroupConfig | None) -> JsonObject:
    """An entry; a slave writes down that a group has no attributes."""
    document = {} if entry is None else entry.document()
    return {name: value for name, value in document.items() if (name, value) != ("attributes", {})}


def _offset_difference(
    master: Metadata, slave: Metadata, *, was_promoted: bool, committed: Callable[[OffsetKey], Container[int]]
) -> str:
    for group, topic, queues in master.consumer_offsets.rows():
        for queue_id, offset in queues.items():
            ours_at = slave.consumer_offsets.query(group, topic, queue_id)
            is_more = ours_at is not None and ours_at > offset and not was_promoted
            if ours_at is None or ours_at < offset or (
                is_more and ours_at not in committed((group, topic, queue_id))
            ):
                return f"the offset of {group} in {topic}/{queue_id} is {offset}, at the slave {ours_at}"
    for group, topic, queues in slave.consumer_offsets.rows():
        for queue_id, offset in queues.items():
            is_known = master.consumer_offsets.query(group, topic, queue_id) is not None
            if not (is_known or was_promoted) and topic in master.topics.entries:
                return f"the slave has offset {offset} of {group} in {topic}/{queue_id}, the master has none"
    return ""


def check_by_key(name: str, parts: BrokerParts, sent: ProducedMessage, begins: Set[int]) -> None:
    """
    B10.

    @param begins: offsets of the broker's records. An entry of the index is no proof: a cut of the log leaves
        those of records that are gone, in the middle of the ones that came after it.
    """
    indexing = parts.store.indexing
    assert indexing is not None
    log = parts.store.log
    for offset in indexing.index.search(hash_of_key(sent.topic, sent.key), 0, 1 << 62):
        if offset in begins and decode_message(log.read(offset, 4096)).keys == (sent.key,):
            return
    require_pair(sent.offset < log.begin_offset, 10, f"{name} does not find {sent.key}")


class OldFiles:
    """
    B21, of the files of all logs of a world.

    @ivar end: files before this offset were made old enough to be deleted.
    """

    def __init__(self) -> None:
        self.end = 0

    def age(self, disk: MachineDisk, path: str, rng: random.Random) -> bool:
        """
        Make some of the oldest files in a directory old enough to be deleted, and never the last one.

        @return: whether there is such a directory.
        """
        if not disk.exists(path):
            return False
        names = sorted(name for name in disk.listdir(path) if name.isdecimal())[:-1]
        for name in names[: rng.randrange(len(names) + 1)]:
            disk.age(f"{path}/{name}", AGED_S)
            self.end = max(self.end, int(name) + LOG_FILE_BYTES)
        return True

    def check(self, machine: BrokerMachine, machines: Iterable[BrokerMachine]) -> None:
        """A log begins after no file that is younger than the retention, unless a disk was full."""
        assert machine.parts is not None
        begin = machine.parts.store.log.begin_offset
        may_go = self.end >= begin or any(one.may_fail for one in machines)
        require_pair(may_go, 21, f"the log of {machine.name} begins at {begin}; files up to {self.end} were "
                                 "old enough")


class OffsetWatch:
    """B9, looked at now and then."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._seen: dict[str, tuple[tuple[int, int], dict[OffsetKey, int]]] = {}
        self._loaded: dict[str, dict[OffsetKey, int]] = {}
        self._commits: dict[tuple[str, OffsetKey], dict[int, int]] = {}
        self._free: dict[OffsetKey, int] = {}
        self._deleted: dict[str, int] = {}
        self._promoted_us = -COPIED_US

    def committing(self, broker: str, key: OffsetKey, offset: int) -> None:
        """A consumer commits an offset; the request may come later."""
        self._commits.setdefault((broker, key), {})[offset] = self._now_us()

    def committed(self, broker: str, key: OffsetKey) -> Container[int]:
        """The offsets that consumers have committed at a broker."""
        return self._commits.get((broker, key), {})

    def promoted(self) -> None:
        """The next master may know older offsets, and so does its slave."""
        self._promoted_us = self._now_us()

    def deleting(self, topic: str) -> None:
        """A topic is about to be deleted, or has just been: its offsets begin anew."""
        self._deleted[topic] = self._now_us()

    def freed(self, key: OffsetKey) -> None:
        """The offset is about to be set by somebody else."""
        self._free[key] = self._now_us()

    def look(self, broker: str, boot: int, parts: BrokerParts, *, masters: bool) -> None:
        """Compare the offsets of a broker with those of the last look. @param boot: number of its process."""
        offsets = {
            (group, topic, queue_id): offset
            for group, topic, queues in parts.metadata.consumer_offsets.rows()
            for queue_id, offset in queues.items()
        }
        life = boot, parts.offset_bounds.taken_back
        was, before = self._seen.get(broker, ((0, 0), {}))
        self._seen[broker] = life, offsets
        if was[0] != boot:
            self._loaded[broker] = offsets
        now_us = self._now_us()
        for key, offset in before.items():
            now = offsets.get(key, -1)
            if now >= offset:
                continue
            is_right = was != life or now in self._commits.get((broker, key), {})
            is_right = is_right or now_us - self._deleted.get(key[1], -COPIED_US) < COPIED_US
            if masters:
                is_right = is_right or now < 0 or key in self._free
                self._free[key] = now_us
            else:
                freed_us = max(self._free.get(key, -COPIED_US), self._promoted_us)
                is_right = is_right or now_us - freed_us < COPIED_US
                is_right = is_right or offset <= self._loaded[broker].get(key, -1)
            require_pair(is_right, 9, f"{broker}: the offset of {key} went back from {offset} to {now}")
