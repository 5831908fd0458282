# -*- test-case-name: tests.spark.test_messages -*-
"""
Properties of messages as columns, without a Python object for each.

All properties of a batch are one run of bytes. Its separators are found at once; names and values are the
pieces between them. The rules are those of L{decode_properties}; where a batch holds properties of another
shape (two ends of a name in one item, a name twice, bytes that are not UTF-8), that function decodes it.
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dledger.spark.basics.log import Offsets
from dledger.spark.ledger.columns import slices
from protocols.wire.rocketmq.layout import NAME_END, VALUE_END
from protocols.wire.rocketmq.message import decode_properties

MAP = pa.map_(pa.string(), pa.string())
#: Names that fit into the bits of a number, of which the sum of all does not overflow.
_BITS = 62


@attrs.frozen(kw_only=True, eq=False)
class PropertyColumns:
    """
    The properties of some messages, one after the other.

    @ivar places: of the values in C{pieces}, which are texts.
    @ivar parents: the message of each, ascending from 0.
    @ivar count: number of messages.
    """

    names: pa.StringArray
    pieces: pa.BinaryArray
    places: Offsets
    parents: Offsets
    count: int

    @classmethod
    def of(cls, raw: pa.BinaryArray) -> PropertyColumns:
        """@param raw: the stored properties of each message; none is null."""
        found = _by_separators(raw)
        if found is not None:
            return found
        pairs = [decode_properties(value).items() for value in raw.to_pylist()]
        values = pa.array([value for one in pairs for _, value in one], type=pa.string())
        return cls(
            names=pa.array([name for one in pairs for name, _ in one], type=pa.string()),
            pieces=values.cast(pa.binary()), places=np.arange(len(values)),
            parents=np.repeat(np.arange(len(raw)), [len(one) for one in pairs]).astype(np.int64),
            count=len(raw),
        )

    def as_maps(self) -> pa.MapArray:
        """A map for each message."""
        offsets = np.zeros(self.count + 1, dtype=np.int32)
        np.cumsum(np.bincount(self.parents, minlength=self.count), out=offsets[1:])
        values = self.pieces.take(pa.array(self.places)).cast(pa.string())
        return pa.MapArray.from_arrays(pa.array(offsets), self.names, values)

    def of_name(self, name: str) -> pa.StringArray:
        """The value that each message has under a name; null where it has none."""
        at = np.flatnonzero(np.asarray(pc.equal(self.names, name)))
        rows = np.full(self.count, -1, dtype=np.int64)
        rows[self.parents[at]] = self.places[at]
        return self.pieces.take(pa.array(rows, mask=rows < 0)).cast(pa.string())


def _by_separators(raw: pa.BinaryArray) -> PropertyColumns | None:
    """None: some properties have a shape that the separators alone do not explain."""
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        return None
    count = len(raw)
    edges = np.frombuffer(raw.buffers()[1], dtype=np.int32)[raw.offset : raw.offset + count + 1]
    if not count or edges[0] == edges[-1]:
        none = np.empty(0, dtype=np.int64)
        return PropertyColumns(names=pa.array([], type=pa.string()), pieces=pa.array([], type=pa.binary()),
                               places=none, parents=none, count=count)
    data = np.frombuffer(raw.buffers()[2], dtype=np.uint8)[edges[0] : edges[-1]]
    edges = (edges - edges[0]).astype(np.int64)
    name_ends, ends = np.flatnonzero(data == ord(NAME_END)), np.flatnonzero(data == ord(VALUE_END))
    # The last item of a message need not have an end of its own.
    lasts = edges[1:][edges[1:] > edges[:-1]]
    lasts = lasts[data[lasts - 1] != ord(VALUE_END)]
    begins = ends + 1
    if len(lasts):
        order = np.argsort(np.concatenate([lasts, ends]), kind="stable")
        begins = np.concatenate([lasts, begins])[order]
        ends = np.concatenate([lasts, ends])[order]
    begins = np.concatenate([edges[:1], begins[:-1]])
    if len(name_ends) != len(ends) or (name_ends < begins).any() or (name_ends >= ends).any():
        return None
    return _of_places(data, edges, begins, name_ends, ends)


def _of_places(
    data: NDArray[np.uint8], edges: Offsets, begins: Offsets, name_ends: Offsets, ends: Offsets
) -> PropertyColumns | None:
    """
    @param edges: of the messages in C{data}.
    @param begins, name_ends, ends: of the items; between name and value is one byte.
    @return: None if a message holds a name twice.
    """
    is_kept = (name_ends > begins) & (name_ends + 1 < ends)  # an item without name or value is none
    if not is_kept.all():
        begins, name_ends, ends = begins[is_kept], name_ends[is_kept], ends[is_kept]
    places = np.empty(4 * len(begins), dtype=np.int64)
    places[0::4], places[1::4], places[2::4], places[3::4] = begins, name_ends, name_ends + 1, ends
    numbers = np.arange(0, 4 * len(begins), 4)
    pieces = slices(data.data, places) if len(begins) else pa.array([], type=pa.binary())
    names = pieces.take(pa.array(numbers)).cast(pa.string())
    parents = np.searchsorted(edges, begins, side="right").astype(np.int64) - 1
    if _is_twice(names, parents):
        return None
    return PropertyColumns(
        names=names, pieces=pieces, places=numbers + 2, parents=parents, count=len(edges) - 1
    )


def _is_twice(names: pa.StringArray, parents: Offsets) -> bool:
    """Whether a message holds a name twice."""
    if not len(names):
        return False
    encoded = names.dictionary_encode()
    kinds, codes = len(encoded.dictionary), encoded.indices.to_numpy().astype(np.int64)
    if kinds > _BITS:
        keys = pa.array(parents * kinds + codes)
        return bool(pc.count_distinct(keys).as_py() != len(keys))
    bits = np.left_shift(np.int64(1), codes)
    firsts = np.concatenate([[0], np.flatnonzero(parents[1:] != parents[:-1]) + 1])
    # The sum of different bits is their union.
    return bool((np.add.reduceat(bits, firsts) != np.bitwise_or.reduceat(bits, firsts)).any())
