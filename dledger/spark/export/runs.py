# -*- test-case-name: tests.spark.test_export -*-
"""Consecutive records that lie in one file of the log: where a file ends, a part of an export ends."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from dledger.spark.formats.log import Chunk, ScannedLog
from dledger.spark.formats.record_headers import HEADER_DTYPE, gather
from dledger.spark.rocketmq.commit_log import SparkCommitLog


@attrs.frozen(kw_only=True)
class Run:
    """
    Consecutive records of one file of the log.

    @ivar next: the offset after them.
    @ivar position, size: their first byte in the log, and their number of bytes.
    @ivar is_ledgers: they are records of a ledger, not a broker's messages.
    """

    chunk: Chunk
    next: int
    position: int
    size: int
    is_ledgers: bool


def runs_of(log: ScannedLog, chunk: Chunk) -> Iterator[Run]:
    """A chunk, cut where files of the log end: a member's answer may have records of two."""
    sizes = np.diff(chunk.starts)
    if isinstance(log, SparkCommitLog):
        size = int(sizes.sum())
        yield Run(chunk=chunk, next=chunk.first + size, position=chunk.first, size=size, is_ledgers=False)
        return
    if chunk.units is not None:
        positions = chunk.units["pos"].astype(np.int64)
    else:
        assert chunk.data is not None
        positions = gather(chunk.data, chunk.starts[:-1], HEADER_DTYPE)["pos"].astype(np.int64)
    edges = [0, *(np.flatnonzero(positions[:-1] + sizes[:-1] != positions[1:]) + 1).tolist(), len(sizes)]
    for first, last in zip(edges, edges[1:], strict=False):
        yield Run(
            chunk=attrs.evolve(
                chunk, starts=chunk.starts[first : last + 1], first=chunk.first + first,
                units=chunk.units[first:last] if chunk.units is not None else None,
            ) if last - first < len(sizes) else chunk,
            next=chunk.first + last, position=int(positions[first]),
            size=int(sizes[first:last].sum()), is_ledgers=True,
        )
