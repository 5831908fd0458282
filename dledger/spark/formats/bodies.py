# -*- test-case-name: tests.spark.test_bodies -*-
"""
Bodies of RocketMQ messages as their producers sent them: producers compress bodies longer than 4 KiB.

zlib is Python's, LZ4 and Zstandard are Arrow's. The size of a result is bounded while it is unpacked.

Source: CompressorFactory, ZlibCompressor, Lz4Compressor (frames), ZstdCompressor (RocketMQ 5.3.3).
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import COMPRESSION_MASK, SysFlag

#: Longest plain body: four times the default limit of producers and brokers.
PLAIN_BYTES_MAX = 16 * 1024 * 1024
#: Arrow's names. Before 5.0 the kind was not recorded; it was always zlib.
_BY_ARROW = {int(SysFlag.LZ4): "lz4", int(SysFlag.ZSTD): "zstd"}
_BY_ZLIB = (0, int(SysFlag.ZLIB))


def plain(body: bytes | memoryview, sys_flag: int, *, bytes_max: int = PLAIN_BYTES_MAX) -> bytes:
    """
    Unpack the body of a message whose flags say that it is compressed.

    @raise WireError: it cannot be unpacked, its kind is unknown, or it is longer than C{bytes_max}.
    """
    kind = sys_flag & COMPRESSION_MASK
    if kind in _BY_ZLIB:
        found = _by_zlib(body, bytes_max)
    elif kind in _BY_ARROW:
        found = _by_arrow(body, _BY_ARROW[kind], bytes_max)
    else:
        raise WireError(f"compressed body: kind {kind >> 8} is unknown")
    if len(found) > bytes_max:
        raise WireError(f"compressed body: unpacks to more than {bytes_max} bytes")
    return found


def _by_zlib(body: bytes | memoryview, bytes_max: int) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise WireError(f"compressed body: {error}") from None
    if len(found) <= bytes_max and not unpacking.eof:
        raise WireError(f"compressed body: ends after {len(found)} bytes, in the middle")
    return found


def _by_arrow(body: bytes | memoryview, codec: str, bytes_max: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), codec) as stream:
            found: bytes = stream.read(bytes_max + 1)
    except (pa.ArrowException, OSError) as error:
        raise WireError(f"compressed body: {error}") from None
    return found
