# -*- test-case-name: tests.namesrv.test_registrations -*-
"""
The bodies of requests to a name server: the topics that a broker registers::

    JSON        {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":..,"topicConfigTable":..}}
    old JSON    the inner object alone, from senders before 3.0.11
    compressed  zlib: int length, data version in JSON; int count, and for each topic int length, text
                "name readQueues writeQueues perm type attributes"; int length, filter servers in JSON

Rule 1: any bytes yield a registration or L{BodyError}. Rule 2: a body has at most L{BODY_BYTES_MAX},
also when it is unpacked; one topic has at most L{PIECE_BYTES_MAX}. Rule 3: a body is read in pieces
(L{dledger.rocketmq.answering.pieces}), and no more of it is unpacked than that.

Source: RegisterBrokerBody, TopicConfig.decode, TopicConfigSerializeWrapper (4.9.8, 5.3.3).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import attrs

from dledger.rocketmq.answering.java_json import LOOSE_BYTES_MAX, DataVersion, read_request
from dledger.rocketmq.answering.json_pieces import JsonPieces
from dledger.rocketmq.answering.pieces import Pieces
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import (
    INT_BITS,
    LONG_BITS,
    JsonObject,
    read_object,
    shown,
    to_int,
    to_text,
)

#: Bytes of a body, compressed or not, at most; as a frame.
BODY_BYTES_MAX = 16 * 1024 * 1024
#: Most characters of the name of a topic, a broker or a cluster, and of an address.
NAME_CHARACTERS_MAX = 255
#: Most filter servers of one broker.
FILTER_SERVERS_MAX = 64

#: Senders with a lower version have the old form of the body: V3_0_11.
BODY_VERSION = 37

#: Bytes that are unpacked at a time, and those of one topic, with its attributes, at most.
CHUNK_BYTES = 16 * 1024
#: Packed bytes of one piece: blocks that unpack to nothing take time, too, some 3 us for 12 bytes.
PACKED_BYTES = 4 * 1024
PIECE_BYTES_MAX = 64 * 1024

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
) -> Pieces[BrokerTopics]:
    """
    The body of REGISTER_BROKER, read in pieces.

    @param version: version of the sender, from its header.
    @param topics_max: a body with more topics is refused.
    @raise BodyError: malformed, or beyond a bound of this module.
    """
    if not body:
        return BrokerTopics(filter_servers=() if version >= BODY_VERSION else None)
    if version >= BODY_VERSION and is_compressed:
        return (yield from _read_compressed(body, topics_max))
    is_old = version < BODY_VERSION
    if len(body) <= LOOSE_BYTES_MAX:  # also if it is as loose as fastjson allows
        document = read_object(body, tolerant_bytes_max=LOOSE_BYTES_MAX)
        if is_old:
            return _topics_of(document, None, topics_max)
        wrapper = document.get("topicConfigSerializeWrapper")
        return _topics_of(
            {} if wrapper is None else to_object(wrapper, "topicConfigSerializeWrapper"),
            _filter_servers(document.get("filterServerList")), topics_max,
        )
    reading = _JsonRegistration(JsonPieces(body), topics_max, is_old=is_old)
    yield from reading.read()
    return reading.topics()


def read_topic_route(body: bytes) -> dict[str, TopicQueues]:
    """
    The body of REGISTER_TOPIC_IN_NAMESRV: queues by name of the broker, in order; other fields are ignored.

    @raise BodyError: malformed.
    """
    if not body:
        return {}
    listed = read_request(body).get("queueDatas")
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


class _JsonRegistration:
    """
    A long registration in strict JSON. Values that we do not need may be loose: the mappings of static topics
    have bare numbers as keys.
    """

    def __init__(self, pieces: JsonPieces, topics_max: int, *, is_old: bool) -> None:
        self._pieces = pieces
        self._topics_max = topics_max
        self._is_old = is_old
        self._version = DataVersion()
        self._topics: dict[str, TopicQueues] = {}
        self._servers: tuple[str, ...] | None = None if is_old else ()

    def topics(self) -> BrokerTopics:
        """What was read."""
        return BrokerTopics(version=self._version, topics=self._topics, filter_servers=self._servers)

    def read(self) -> Pieces[None]:
        """@raise BodyError: malformed, or beyond a bound."""
        if self._is_old:
            yield from self._wrapper()
        else:
            pieces = self._pieces
            yield from pieces.begin("the registration")
            while (key := (yield from pieces.key())) is not None:
                if key == "topicConfigSerializeWrapper":
                    yield from self._wrapper()
                elif key == "filterServerList":
                    self._servers = _filter_servers((yield from pieces.value()))
                else:
                    yield from pieces.skip()
        yield from self._pieces.end()

    def _wrapper(self) -> Pieces[None]:
        pieces = self._pieces
        if not (yield from pieces.begin("topicConfigSerializeWrapper", or_null=not self._is_old)):
            return
        while (key := (yield from pieces.key())) is not None:
            if key == "topicConfigTable":
                yield from self._table()
            elif key == "dataVersion":
                self._version = read_data_version((yield from pieces.value()))
            else:
                yield from pieces.skip()

    def _table(self) -> Pieces[None]:
        pieces, topics = self._pieces, self._topics
        topics.clear()
        known: dict[tuple[object, ...], TopicQueues] = {}
        if not (yield from pieces.begin("topicConfigTable", or_null=True)):
            return
        while (key := (yield from pieces.key())) is not None:
            topic = to_object((yield from pieces.value()), "topicConfigTable")
            name = topic.get("topicName")
            topics[read_name(key if name is None else name, "topicName")] = _shared_queues(topic, known)
            _check_count(len(topics), self._topics_max)


# -- the compressed form -----------------------------------------------------------------------------


def _read_compressed(body: bytes, topics_max: int) -> Pieces[BrokerTopics]:
    pieces = _Pieces(body)
    version = read_data_version(_json((yield from pieces.piece("the data version")), "the data version"))
    count = yield from pieces.number("the count of topics")
    if not 0 <= count <= BODY_BYTES_MAX // _INT_SIZE:
        raise BodyError(f"{count} topics are announced, which have no room in a body")
    _check_count(count, topics_max)
    topics = {}
    known: dict[str, TopicQueues] = {}
    for _ in range(count):
        name, _, rest = _text_of((yield from pieces.piece("a topic"))).partition(" ")
        queues = known.get(rest)  # most topics of a broker have the same numbers
        if queues is None:
            queues = known[rest] = _read_rest(name, rest)
        topics[read_name(name, "topicName")] = queues
    servers = _filter_servers(_json((yield from pieces.piece("the filter servers")), "the filter servers"))
    # Mappings of static topics may follow: we have none.
    yield from pieces.end()
    return BrokerTopics(version=version, topics=topics, filter_servers=servers)


class _Pieces:
    """
    Numbers, and pieces with their length before them, from the beginning on. What was taken of the unpacked
    body is not kept.

    Invariant: C{_data} has the bytes from C{_at} on that are unpacked and not taken.
    """

    def __init__(self, body: bytes) -> None:
        self._unpacking = zlib.decompressobj()
        self._packed = body
        self._data = b""
        self._at = self._unpacked_bytes = self._next = 0

    def _unpack(self) -> bool:
        """A piece. @return: whether it was not the end. @raise BodyError: malformed, cut or too long."""
        unpacking = self._unpacking
        if unpacking.eof:
            return False
        packed = unpacking.unconsumed_tail
        if not packed:
            packed = self._packed[self._next : self._next + PACKED_BYTES]
            self._next += len(packed)
        try:
            data = unpacking.decompress(packed, CHUNK_BYTES)
        except zlib.error as error:
            raise BodyError(f"the compressed body is malformed: {error}") from None
        self._unpacked_bytes += len(data)
        if self._unpacked_bytes > BODY_BYTES_MAX:
            raise BodyError(f"the compressed body has more than {BODY_BYTES_MAX} bytes when it is unpacked")
        if not (packed or data or unpacking.eof):
            raise BodyError("the compressed body is cut")
        self._data = self._data[self._at:] + data
        self._at = 0
        return True

    def end(self) -> Pieces[None]:
        """Unpack the rest. @raise BodyError: it is malformed, or too long."""
        self._at = len(self._data)
        while self._unpack():
            self._at = len(self._data)
            yield

    def number(self, what: str) -> Pieces[int]:
        """@raise BodyError: the body ends before it."""
        while len(self._data) - self._at < _INT_SIZE:
            if not self._unpack():
                raise BodyError(f"the body ends before {what}")
            yield
        self._at += _INT_SIZE
        return int.from_bytes(self._data[self._at - _INT_SIZE : self._at], "big", signed=True)

    def piece(self, what: str) -> Pieces[bytes]:
        """@raise BodyError: its length is negative, above L{PIECE_BYTES_MAX}, or the body ends before it."""
        length = yield from self.number(what)
        if not 0 <= length <= PIECE_BYTES_MAX:
            raise BodyError(f"{what} has a length of {length}, at most {PIECE_BYTES_MAX} are allowed")
        while len(self._data) - self._at < length:
            if not self._unpack():
                raise BodyError(f"{what} has a length of {length}, {len(self._data) - self._at} bytes follow")
            yield
        self._at += length
        return self._data[self._at - length : self._at]


def _json(piece: bytes, what: str) -> object:
    """Any JSON value: the list of filter servers is not an object. @raise BodyError: malformed."""
    if not piece:
        return None
    data = b'{"value":' + piece + b"}" if piece[:1] == b"[" else piece
    document = read_object(data, tolerant_bytes_max=LOOSE_BYTES_MAX)
    return document.get("value") if data is not piece else document


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
