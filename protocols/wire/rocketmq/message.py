# -*- test-case-name: tests.wire.test_rocketmq_message -*-
"""
The record of one message in a RocketMQ commit log, and the properties in it.

In a plain commit log the records are consecutive. In DLedger mode each is the body of one entry, and its
C{physical_offset} is the entry's C{pos} + L{DLEDGER_BODY_OFFSET}. L{protocols.wire.rocketmq.layout} declares
the bytes.

C{body_crc} is zlib's CRC-32 of the body without the highest bit. It covers only the body: damage in topic,
properties and numbers is detected only if lengths no longer add up.

Records are checked as the Java broker checks them on recovery (magic, body CRC, lengths against the total
size); no length exceeds the given bytes.

Source: MessageDecoder, MessageExtEncoder, MessageVersion, MessageSysFlag, CompressionType (RocketMQ 4.9.8 and
5.3.3).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import NoReturn

import attrs

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import (
    BATCH_ITEM,
    COMPRESSION_MASK,
    DLEDGER_BODY_OFFSET,
    HEAD,
    HEAD_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIDDLES,
    MIN_MESSAGE_SIZE,
    NAME_END,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_LENGTH,
    START,
    START_SIZE,
    TOPIC_BYTES_MAX,
    TOPIC_LENGTHS,
    TRANSACTION_MASK,
    VALUE_END,
    SysFlag,
)


@attrs.frozen
class Host:
    """
    Address of the producer or broker of a message.

    @ivar address: 4 bytes of IPv4, or 16 of IPv6.
    @ivar port: as recorded, 32 bits.
    """

    address: bytes
    port: int

    @property
    def is_v6(self) -> bool:
        """Whether the address has 16 bytes."""
        return len(self.address) == 16

    def __str__(self) -> str:
        if self.is_v6:
            return f"[{IPv6Address(self.address)}]:{self.port}"
        return f"{IPv4Address(self.address)}:{self.port}"

    @classmethod
    def of(cls, ip: str, port: int) -> Host:
        """@raise ValueError: C{ip} is not an IP address in the usual notation."""
        return cls((IPv6Address(ip) if ":" in ip else IPv4Address(ip)).packed, port)


@attrs.frozen(kw_only=True)
class Message:
    """
    One stored message. Field names are those of the declarations.

    @ivar version: 1 or 2, from its magic.
    @ivar body: as stored, perhaps compressed: see L{plain_body}.
    @ivar properties_data: as stored. Copy them unchanged: their order has no meaning here, but replicas
        are compared byte by byte.
    """

    topic: str
    body: bytes
    properties_data: bytes = b""
    version: int = 1
    body_crc: int = 0
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = Host(b"\0\0\0\0", 0)
    store_timestamp: int = 0
    store_host: Host = Host(b"\0\0\0\0", 0)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @property
    def size(self) -> int:
        """Size of the record in bytes."""
        return message_size(
            len(self.topic.encode("utf-8")), len(self.body), len(self.properties_data), version=self.version,
            is_born_v6=self.born_host.is_v6, is_store_v6=self.store_host.is_v6,
        )

    @property
    def properties(self) -> dict[str, str]:
        """The decoded properties, see L{decode_properties}; a new dict at each call."""
        return decode_properties(self.properties_data)

    @property
    def tags(self) -> str | None:
        """Property C{TAGS}; None if there is none."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """The words of property C{KEYS}, split at blanks."""
        return tuple(word for word in self.properties.get("KEYS", "").split(" ") if word)

    @property
    def unique_key(self) -> str | None:
        """Property C{UNIQ_KEY}, set by the producer; None if there is none."""
        return self.properties.get("UNIQ_KEY")

    @property
    def message_id(self) -> str:
        """The broker's message id: store host and physical offset, 32 or 56 hexadecimal digits."""
        port = (self.store_host.port & 0xFFFFFFFF).to_bytes(4, "big")
        offset = (self.physical_offset & 0xFFFFFFFF_FFFFFFFF).to_bytes(8, "big")
        return (self.store_host.address + port + offset).hex().upper()

    @property
    def is_compressed(self) -> bool:
        """Whether the body is compressed."""
        return bool(self.sys_flag & SysFlag.COMPRESSED)

    @property
    def compression(self) -> str:
        """C{none}, C{zlib}, C{lz4}, C{zstd}, or the number of an unknown compression."""
        if not self.is_compressed:
            return "none"
        kind = self.sys_flag & COMPRESSION_MASK
        # Before 5.0 the kind was not recorded; it was always zlib.
        known = {0: "zlib", SysFlag.ZLIB: "zlib", SysFlag.LZ4: "lz4", SysFlag.ZSTD: "zstd"}
        return known.get(kind, str(kind >> 8))

    @property
    def transaction(self) -> str:
        """C{none}, C{prepared}, C{commit} or C{rollback}."""
        kind = self.sys_flag & TRANSACTION_MASK
        return {0: "none", SysFlag.PREPARED: "prepared", SysFlag.COMMIT: "commit"}.get(kind, "rollback")

    @property
    def is_inner_batch(self) -> bool:
        """Whether the body is a batch that the broker stored as one message."""
        return bool(self.sys_flag & SysFlag.INNER_BATCH)

    @property
    def tags_code(self) -> int:
        """L{tags_code_of} its tags. (A delayed message has another code in its queue while it waits.)"""
        return tags_code_of(self.tags)


@attrs.frozen
class RecordStart:
    """
    The first two words of a record.

    @ivar size: size of the record in bytes; for a blank, the bytes left in its file.
    """

    size: int
    magic: int

    @property
    def is_message(self) -> bool:
        """Whether this is a message of a known version."""
        return self.magic in (MAGIC_V1, MAGIC_V2)

    @property
    def is_blank(self) -> bool:
        """Whether the rest of the file is unused."""
        return self.magic == MAGIC_BLANK


@attrs.frozen(kw_only=True)
class BatchItem:
    """One message of a batch request."""

    flag: int
    body: bytes
    properties_data: bytes


@attrs.frozen
class _Parts:
    """The positions of the parts of a record, counted from the start of the data."""

    head: tuple[int, ...]
    middle: tuple[int, ...]
    body_at: int
    topic_at: int
    topic_length: int
    properties_at: int
    end: int


def body_crc_of(body: bytes | memoryview) -> int:
    """The checksum of a body, as in its record; 0 for an empty body."""
    return crc32(body) & 0x7FFFFFFF


def java_hash(text: str) -> int:
    """Java's C{String.hashCode}: over UTF-16 units, signed 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def tags_code_of(tags: str | None) -> int:
    """The tags' code in a consume queue, a signed number of 64 bits; 0 without tags."""
    return java_hash(tags) if tags else 0


def message_size(
    topic_length: int, body_length: int, properties_length: int, *, version: int = 1,
    is_born_v6: bool = False, is_store_v6: bool = False,
) -> int:
    """Size in bytes of a record, from the sizes of its parts."""
    return (
        MIN_MESSAGE_SIZE - 1 + version + 12 * (is_born_v6 + is_store_v6)
        + topic_length + body_length + properties_length
    )


def decode_start(data: bytes | memoryview, offset: int = 0) -> RecordStart:
    """
    The first two words at C{offset}, unchecked.

    @raise WireError: fewer than 8 bytes at C{offset}.
    """
    if offset < 0 or len(data) - offset < START_SIZE:
        raise WireError(f"message: {max(0, len(data) - offset)} bytes at {offset}, {START_SIZE} are needed")
    size, magic = START.unpack_from(data, offset)
    return RecordStart(size, magic)


def _bad(offset: int, what: str) -> NoReturn:
    raise WireError(f"message at {offset}: {what}")


def _split(data: bytes | memoryview, offset: int) -> _Parts:
    """Find the parts of the record at C{offset}; every length is bounded before it is used."""
    start = decode_start(data, offset)
    if not start.is_message:
        _bad(offset, f"magic={start.magic & 0xFFFFFFFF:08x}, {MAGIC_V1 & 0xFFFFFFFF:08x} or "
                     f"{MAGIC_V2 & 0xFFFFFFFF:08x} is needed")
    left = len(data) - offset
    if not MIN_MESSAGE_SIZE <= start.size <= left:
        _bad(offset, f"size={start.size} outside {MIN_MESSAGE_SIZE}..{left}, the bytes available")
    end = offset + start.size
    version = 1 if start.magic == MAGIC_V1 else 2
    head = HEAD.unpack_from(data, offset)
    sys_flag = head[7]
    middle_form = MIDDLES[bool(sys_flag & SysFlag.BORN_HOST_V6), bool(sys_flag & SysFlag.STORE_HOST_V6)]
    topic_form = TOPIC_LENGTHS[version]
    # Bytes after the body if topic and properties are empty.
    rest = topic_form.size + PROPERTIES_LENGTH.size
    body_at = offset + HEAD_SIZE + middle_form.size
    room = end - rest - body_at
    if room < 0:
        _bad(offset, f"size={start.size} is too small for its addresses (sysFlag={sys_flag:#x})")
    middle = middle_form.unpack_from(data, offset + HEAD_SIZE)
    body_length = middle[-1]
    if not 0 <= body_length <= room:
        _bad(offset, f"bodyLength={body_length} outside 0..{room}")
    topic_at = body_at + body_length + topic_form.size
    (topic_length,) = topic_form.unpack_from(data, topic_at - topic_form.size)
    if not 0 <= topic_length <= room - body_length:
        _bad(offset, f"topicLength={topic_length} outside 0..{room - body_length}")
    properties_at = topic_at + topic_length + PROPERTIES_LENGTH.size
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(data, properties_at - PROPERTIES_LENGTH.size)
    if properties_length != end - properties_at:
        _bad(offset, f"propertiesLength={properties_length}, but size={start.size} leaves "
                     f"{end - properties_at}")
    return _Parts(head, middle, body_at, topic_at, topic_length, properties_at, end)


def _check_body(data: bytes | memoryview, offset: int, parts: _Parts) -> None:
    body_end = parts.body_at + parts.middle[-1]
    crc = body_crc_of(memoryview(data)[parts.body_at : body_end])
    # Java ignores the checksum of an empty body.
    if crc != parts.head[2] and body_end > parts.body_at:
        _bad(offset, f"bodyCRC={parts.head[2] & 0xFFFFFFFF:08x}, but its body has {crc:08x}")


def check_message(data: bytes | memoryview, offset: int = 0, *, verify_body: bool = True) -> int:
    """
    Check that Java's recovery would accept the record at C{offset}; cheaper than decoding it.

    @param verify_body: whether to compare the body's checksum too.
    @return: size of the record in bytes.
    @raise WireError: no such record at C{offset}; the error's text names the fault.
    """
    parts = _split(data, offset)
    if verify_body:
        _check_body(data, offset, parts)
    return parts.end - offset


def _host(fields: tuple[int, ...], at: int, is_v6: bool) -> Host:
    if is_v6:
        return Host(fields[at].to_bytes(8, "big") + fields[at + 1].to_bytes(8, "big"), fields[at + 2])
    return Host(fields[at].to_bytes(4, "big"), fields[at + 1])


def decode_message(
    data: bytes | memoryview, offset: int = 0, *, verify_body: bool = True, physical_offset: int | None = None
) -> Message:
    """
    Decode the record at C{offset}.

    Bytes after the record are ignored: the next one begins at C{offset + message.size}.

    @param verify_body: whether to compare the body's checksum.
    @param physical_offset: required log offset in the record; None to accept any.
    @raise WireError: no valid record at C{offset}; the error's text names the fault.
    """
    parts = _split(data, offset)
    if verify_body:
        _check_body(data, offset, parts)
    (_, magic, body_crc, queue_id, flag, queue_offset, found_offset, sys_flag, born_timestamp) = parts.head
    if physical_offset is not None and found_offset != physical_offset:
        _bad(offset, f"physicalOffset={found_offset}, {physical_offset} is needed here")
    try:
        topic = str(data[parts.topic_at : parts.topic_at + parts.topic_length], "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"message at {offset}: topic is not UTF-8: {error.reason} at {error.start}") from None
    is_born_v6, is_store_v6 = bool(sys_flag & SysFlag.BORN_HOST_V6), bool(sys_flag & SysFlag.STORE_HOST_V6)
    after_born = 3 if is_born_v6 else 2
    return Message(
        topic=topic,
        body=bytes(data[parts.body_at : parts.body_at + parts.middle[-1]]),
        properties_data=bytes(data[parts.properties_at : parts.end]),
        version=1 if magic == MAGIC_V1 else 2,
        body_crc=body_crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=found_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=_host(parts.middle, 0, is_born_v6),
        store_timestamp=parts.middle[after_born],
        store_host=_host(parts.middle, after_born + 1, is_store_v6),
        reconsume_times=parts.middle[-3],
        prepared_transaction_offset=parts.middle[-2],
    )


def decode_entry_body(body: bytes | memoryview, pos: int) -> Message:
    """
    The message in an entry of a RocketMQ broker in DLedger mode: exactly the whole body.

    @param pos: stream offset of the entry in bytes; the record's log offset must be L{DLEDGER_BODY_OFFSET}
        higher.
    @raise WireError: the body is not exactly one record; so also for an empty body (term-start entry).
    """
    message = decode_message(body, physical_offset=pos + DLEDGER_BODY_OFFSET)
    if message.size != len(body):
        _bad(0, f"{len(body) - message.size} bytes after it in its entry")
    return message


def make_message(
    topic: str, body: bytes, *, properties: Mapping[str, str] | None = None, **fields: object
) -> Message:
    """
    A message with computed checksum, version and address bits.

    @param properties: instead of C{properties_data}.
    @param fields: other fields of L{Message}.
    @raise ValueError: topic or properties are too long, or a name or value cannot be encoded.
    """
    if properties is not None:
        fields["properties_data"] = encode_properties(properties)
    make: Callable[..., Message] = Message
    message = make(topic=topic, body=body, **fields)
    sys_flag = message.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    if message.born_host.is_v6:
        sys_flag |= SysFlag.BORN_HOST_V6
    if message.store_host.is_v6:
        sys_flag |= SysFlag.STORE_HOST_V6
    version = 2 if len(topic.encode("utf-8")) > TOPIC_BYTES_MAX[1] else message.version
    message = attrs.evolve(message, sys_flag=int(sys_flag), version=version, body_crc=body_crc_of(body))
    _check_lengths(message)
    return message


def _check_lengths(message: Message) -> None:
    topic_bytes = len(message.topic.encode("utf-8"))
    if topic_bytes > TOPIC_BYTES_MAX[message.version]:
        raise ValueError(
            f"topic of {topic_bytes} bytes; {TOPIC_BYTES_MAX[message.version]} are allowed in version "
            f"{message.version}"
        )
    if len(message.properties_data) > PROPERTIES_BYTES_MAX:
        raise ValueError(
            f"properties of {len(message.properties_data)} bytes; {PROPERTIES_BYTES_MAX} are allowed"
        )
    for name, host, bit in (("born_host", message.born_host, SysFlag.BORN_HOST_V6),
                            ("store_host", message.store_host, SysFlag.STORE_HOST_V6)):
        if len(host.address) != (16 if message.sys_flag & bit else 4):
            raise ValueError(f"{name} of {len(host.address)} bytes with sys_flag={message.sys_flag:#x}")


@lru_cache(maxsize=1024)
def host_numbers(host: Host) -> tuple[int, ...]:
    """The fields of a host in a record: its address, in one number or (IPv6) in two, and its port."""
    if host.is_v6:
        return int.from_bytes(host.address[:8], "big"), int.from_bytes(host.address[8:], "big"), host.port
    return int.from_bytes(host.address, "big"), host.port


def encode_message(message: Message) -> bytes:
    """
    The record, with every field as given (also C{body_crc}).

    @raise ValueError: topic or properties are too long, or addresses contradict C{sys_flag}.
    """
    _check_lengths(message)
    topic = message.topic.encode("utf-8")
    head = HEAD.pack(
        message.size, MAGIC_V1 if message.version == 1 else MAGIC_V2, message.body_crc, message.queue_id,
        message.flag, message.queue_offset, message.physical_offset, message.sys_flag, message.born_timestamp,
    )
    middle = MIDDLES[message.born_host.is_v6, message.store_host.is_v6].pack(
        *host_numbers(message.born_host), message.store_timestamp, *host_numbers(message.store_host),
        message.reconsume_times, message.prepared_transaction_offset, len(message.body),
    )
    return b"".join((
        head, middle, message.body, TOPIC_LENGTHS[message.version].pack(len(topic)), topic,
        PROPERTIES_LENGTH.pack(len(message.properties_data)), message.properties_data,
    ))


def decode_properties(data: bytes) -> dict[str, str]:
    """
    Names and values, in the order of the bytes; if a name repeats, the last value counts.

    As in RocketMQ 5: a name ends at its first 0x01; an item without a name or value is skipped; invalid
    UTF-8 is replaced. (4.9 skips a value that contains 0x01.) Some versions end the last value with 0x02
    and some do not.
    """
    found = {}
    for item in data.decode("utf-8", "replace").split(VALUE_END):
        name, _, value = item.partition(NAME_END)
        if name and value:
            found[name] = value
    return found


def encode_properties(properties: Mapping[str, str], *, is_ended: bool = True) -> bytes:
    """
    The bytes of properties, in the order of the mapping.

    @param is_ended: whether the last value ends with 0x02 too, as before 4.9.1 and since 5.2.0; then more
        properties can be appended.
    @raise ValueError: an empty name or value, one that contains a separator, or more than
        L{PROPERTIES_BYTES_MAX} bytes.
    """
    items = []
    for name, value in properties.items():
        for text in (name, value):
            if not text or NAME_END in text or VALUE_END in text:
                raise ValueError(f"property {name!r}={value!r}: empty, or contains 0x01 or 0x02")
        items.append(f"{name}{NAME_END}{value}{VALUE_END}")
    data = "".join(items).encode("utf-8")
    if data and not is_ended:
        data = data[:-1]
    if len(data) > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties of {len(data)} bytes; {PROPERTIES_BYTES_MAX} are allowed")
    return data


def plain_body(message: Message, *, bytes_max: int = 64 * 1024 * 1024) -> bytes:
    """
    The body as the producer sent it.

    @param bytes_max: maximum size of the plain body in bytes, if it is compressed.
    @raise WireError: compressed by another method than zlib, damaged, or larger than C{bytes_max}.
    """
    if not message.is_compressed:
        return message.body
    if message.compression != "zlib":
        raise WireError(f"body is compressed by {message.compression}; only zlib can be read")
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(message.body, bytes_max + 1)
    except zlib.error as error:
        raise WireError(f"compressed body: {error}") from None
    if len(plain) > bytes_max:
        raise WireError(f"compressed body: more than {bytes_max} bytes when decompressed")
    if not unpacking.eof:
        raise WireError(f"compressed body: ends after {len(plain)} bytes, in the middle")
    return plain


def decode_batch(data: bytes | memoryview) -> list[BatchItem]:
    """
    The messages in the body of a batch request.

    @raise WireError: lengths that do not add up.
    """
    items = []
    offset = 0
    while offset < len(data):
        left = len(data) - offset
        if left < BATCH_ITEM.size + PROPERTIES_LENGTH.size:
            raise WireError(f"batch: {left} bytes left at {offset}, too few for a message")
        size, _, _, flag, body_length = BATCH_ITEM.unpack_from(data, offset)
        room = min(size, left) - BATCH_ITEM.size - PROPERTIES_LENGTH.size
        if size > left or not 0 <= body_length <= room:
            raise WireError(f"batch: size={size}, bodyLength={body_length} at {offset}, {left} bytes left")
        body_at = offset + BATCH_ITEM.size
        properties_at = body_at + body_length + PROPERTIES_LENGTH.size
        (length,) = PROPERTIES_LENGTH.unpack_from(data, properties_at - PROPERTIES_LENGTH.size)
        if length != offset + size - properties_at:
            raise WireError(f"batch: propertiesLength={length} at {offset}, size={size} leaves "
                            f"{offset + size - properties_at}")
        items.append(BatchItem(
            flag=flag, body=bytes(data[body_at : body_at + body_length]),
            properties_data=bytes(data[properties_at : offset + size]),
        ))
        offset += size
    return items


def encode_batch(items: Sequence[BatchItem]) -> bytes:
    """The body of a batch request. @raise ValueError: properties that are too long."""
    parts = []
    for item in items:
        if len(item.properties_data) > PROPERTIES_BYTES_MAX:
            raise ValueError(
                f"properties of {len(item.properties_data)} bytes; {PROPERTIES_BYTES_MAX} are allowed"
            )
        size = BATCH_ITEM.size + len(item.body) + PROPERTIES_LENGTH.size + len(item.properties_data)
        parts += [BATCH_ITEM.pack(size, 0, 0, item.flag, len(item.body)), item.body,
                  PROPERTIES_LENGTH.pack(len(item.properties_data)), item.properties_data]
    return b"".join(parts)
