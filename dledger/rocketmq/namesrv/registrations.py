# -*- test-case-name: tests.namesrv.test_registrations -*-
"""
The bodies of requests to a name server: the topics that a broker registers.

    JSON        {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":..,"topicConfigTable":..}}
    old JSON    the inner object alone, from senders before 3.0.11
    compressed  zlib: int length, data version in JSON; int count, and for each topic int length, text
                "name readQueues writeQueues perm type attributes"; int length, filter servers in JSON

Rule 1: any bytes yield a registration or L{BodyError}. Rule 2: a count or a length is compared with the bytes
that are left before it is used; a body is at most L{BODY_BYTES_MAX} bytes long, also when it is unpacked.

Source: RegisterBrokerBody, TopicConfig.decode, TopicConfigSerializeWrapper (4.9.8, 5.3.3).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import attrs

from dledger.rocketmq.answering.java_json import DataVersion
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import INT_BITS, LONG_BITS, JsonObject, read_object, shown, to_int, to_text

#: Bytes of a body, compressed or not, at most; as a frame.
BODY_BYTES_MAX = 16 * 1024 * 1024
#: Most characters of the name of a topic, a broker or a cluster, and of an address.
NAME_CHARACTERS_MAX = 255
#: Most filter servers of one broker.
FILTER_SERVERS_MAX = 64

#: Senders with a lower version have the old form of the body: V3_0_11.
BODY_VERSION = 37

_INT_SIZE = 4

_QUEUE_FIELDS = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")

#: Bits of a topic's permission.
PERM_WRITE = 2
PERM_READ_WRITE = 6


@attrs.frozen(kw_only=True)
class TopicQueues:
    """
    The queues of one topic at one broker, with Java's defaults.

    @ivar perm: sum of 4 (read) and 2 (write). @ivar sys_flag: 1: unit; 2: has subscribers of units.
    """

    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ_WRITE
    sys_flag: int = 0


@attrs.frozen(kw_only=True)
class BrokerTopics:
    """
    The body of a registration.

    @ivar version: version of the broker's table of topics.
    @ivar topics: by name.
    @ivar filter_servers: None if the sender's form has none: those of before stay.
    """

    version: DataVersion = DataVersion()
    topics: Mapping[str, TopicQueues] = attrs.Factory(dict)
    filter_servers: tuple[str, ...] | None = ()


def read_name(value: object, what: str) -> str:
    """
    A name or an address of bounded length.

    @raise BodyError: it is not a text, empty, or longer than L{NAME_CHARACTERS_MAX}.
    """
    if isinstance(value, str) and value.isascii() and 0 < len(value) <= NAME_CHARACTERS_MAX:
        return value  # the usual case
    text = to_text(value, what)
    if not text or len(text) > NAME_CHARACTERS_MAX:
        raise BodyError(f"{what}={shown(value)}: write 1 to {NAME_CHARACTERS_MAX} characters")
    return text


def read_data_version(value: object) -> DataVersion:
    """A data version; fields that lack are 0. @raise BodyError: C{value} is not an object."""
    document = {} if value is None else to_object(value, "dataVersion")

    def number(name: str) -> int:
        return to_int(document.get(name), LONG_BITS, name) or 0

    return DataVersion(
        timestamp=number("timestamp"), counter=number("counter"), state_version=number("stateVersion")
    )


def read_registration(
    body: bytes, *, version: int, is_compressed: bool, topics_max: int
) -> BrokerTopics:
    """
    The body of REGISTER_BROKER.

    @param version: version of the sender, from its header.
    @param topics_max: a body with more topics is refused before they are read, which would take seconds.
    @raise BodyError: malformed, or beyond a bound of this module.
    """
    if not body:
        return BrokerTopics(filter_servers=() if version >= BODY_VERSION else None)
    if version < BODY_VERSION:
        return _topics_of(read_object(body), None, topics_max)
    if is_compressed:
        return _read_compressed(body, topics_max)
    document = read_object(body)
    wrapper = document.get("topicConfigSerializeWrapper")
    return _topics_of(
        {} if wrapper is None else to_object(wrapper, "topicConfigSerializeWrapper"),
        _filter_servers(document.get("filterServerList")), topics_max,
    )


def read_topic_route(body: bytes) -> dict[str, TopicQueues]:
    """
    The body of REGISTER_TOPIC_IN_NAMESRV: queues by name of the broker, in order; other fields are ignored.

    @raise BodyError: malformed.
    """
    if not body:
        return {}
    listed = read_object(body).get("queueDatas")
    if listed is None:
        return {}
    if not isinstance(listed, list):
        raise BodyError(f"queueDatas={shown(listed)} is not a list")
    found = {}
    for value in listed:
        one = to_object(value, "queueDatas")
        found[read_name(one.get("brokerName"), "brokerName")] = _queues(one, 0, 0)
    return found


def _check_count(count: int, topics_max: int) -> None:
    if count > topics_max:
        raise BodyError(f"it has {count} topics; topics_max={topics_max}")


def _topics_of(
    wrapper: JsonObject, filter_servers: tuple[str, ...] | None, topics_max: int
) -> BrokerTopics:
    said = wrapper.get("topicConfigTable")
    table = {} if said is None else to_object(said, "topicConfigTable")
    _check_count(len(table), topics_max)
    topics = {}
    known: dict[tuple[object, ...], TopicQueues] = {}
    for key, value in table.items():
        topic = to_object(value, "topicConfigTable")
        name = topic.get("topicName")
        topics[read_name(key if name is None else name, "topicName")] = _shared_queues(topic, known)
    return BrokerTopics(
        version=read_data_version(wrapper.get("dataVersion")), topics=topics, filter_servers=filter_servers
    )


def _shared_queues(
    document: JsonObject, known: dict[tuple[object, ...], TopicQueues]
) -> TopicQueues:
    """As L{_queues} with Java's defaults; most topics of a broker have the same numbers."""
    said = tuple(map(document.get, _QUEUE_FIELDS))
    try:
        return known[said]
    except KeyError:
        found = known[said] = _queues(document, 16, 6)
        return found
    except TypeError:  # an object or a list, which is not a number
        return _queues(document, 16, 6)


def _queues(document: JsonObject, queue_nums: int, perm: int) -> TopicQueues:
    def number(name: str, default: int) -> int:
        found = to_int(document.get(name), INT_BITS, name)
        return default if found is None else found

    return TopicQueues(
        read_queue_nums=number("readQueueNums", queue_nums),
        write_queue_nums=number("writeQueueNums", queue_nums), perm=number("perm", perm),
        sys_flag=number("topicSysFlag", 0),
    )


def _filter_servers(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > FILTER_SERVERS_MAX:
        raise BodyError(f"filterServerList={shown(value)}: write a list of at most {FILTER_SERVERS_MAX}")
    return tuple(read_name(one, "filterServerList") for one in value)


# -- the compressed form -----------------------------------------------------------------------------


def _read_compressed(body: bytes, topics_max: int) -> BrokerTopics:
    pieces = _Pieces(_unpacked(body))
    version = read_data_version(_json(pieces.piece("the data version"), "the data version"))
    count = pieces.number("the count of topics")
    if not 0 <= count <= pieces.left // _INT_SIZE:
        raise BodyError(f"{count} topics are announced, {pieces.left} bytes follow")
    _check_count(count, topics_max)
    topics = {}
    known: dict[str, TopicQueues] = {}
    for _ in range(count):
        name, _, rest = _text_of(pieces.piece("a topic")).partition(" ")
        queues = known.get(rest)  # most topics of a broker have the same numbers
        if queues is None:
            queues = known[rest] = _read_rest(name, rest)
        topics[read_name(name, "topicName")] = queues
    servers = _filter_servers(_json(pieces.piece("the filter servers"), "the filter servers"))
    # Mappings of static topics may follow: we have none.
    return BrokerTopics(version=version, topics=topics, filter_servers=servers)


def _unpacked(body: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(body, BODY_BYTES_MAX)
    except zlib.error as error:
        raise BodyError(f"the compressed body is malformed: {error}") from None
    if unpacking.unconsumed_tail:
        raise BodyError(f"the compressed body has more than {BODY_BYTES_MAX} bytes when it is unpacked")
    if not unpacking.eof:
        raise BodyError("the compressed body is cut")
    return data


class _Pieces:
    """Numbers, and pieces with their length before them, from the beginning on."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that were not read."""
        return len(self._data) - self._at

    def number(self, what: str) -> int:
        """@raise BodyError: the body ends before it."""
        if self.left < _INT_SIZE:
            raise BodyError(f"the body ends before {what}")
        self._at += _INT_SIZE
        return int.from_bytes(self._data[self._at - _INT_SIZE : self._at], "big", signed=True)

    def piece(self, what: str) -> bytes:
        """@raise BodyError: its length is negative, or more than the bytes that are left."""
        length = self.number(what)
        if not 0 <= length <= self.left:
            raise BodyError(f"{what} has a length of {length}, {self.left} bytes follow")
        self._at += length
        return self._data[self._at - length : self._at]


def _json(piece: bytes, what: str) -> object:
    """Any JSON value: the list of filter servers is not an object. @raise BodyError: malformed."""
    if not piece:
        return None
    return read_object(b'{"value":' + piece + b"}").get("value") if piece[:1] == b"[" else read_object(piece)


def _text_of(piece: bytes) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        raise BodyError("the text of a topic is not UTF-8") from None


def _read_rest(name: str, rest: str) -> TopicQueues:
    """The text of a topic after its name. @raise BodyError: malformed."""
    # 4.9 has four fields here. The attributes of 5.x follow, and may have blanks.
    fields = rest.split(" ", 4) if rest else []
    if len(fields) < 4:
        raise BodyError(f"the topic {shown(name)} has {len(fields) + 1} fields, at least 5 are needed")
    read, write, perm = (to_int(field, INT_BITS, "a number of a topic") or 0 for field in fields[:3])
    return TopicQueues(read_queue_nums=read, write_queue_nums=write, perm=perm)
