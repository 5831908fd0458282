# -*- test-case-name: tests.spark.test_messages,tests.spark.test_message_shapes -*-
"""
Properties of messages as columns, without a Python object for each.

All properties of a batch are one run of bytes. Its separators are found at once; names and values are the
pieces between them. Where all messages have the same names, which most logs do, eight bytes of each name are
compared with those of the first message at once, and no name is copied. The rules are those of
L{decode_properties}; where a batch holds properties of another shape (two ends of a name in one item, a name
twice, bytes that are not UTF-8), that function decodes it.
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dledger.spark.formats.log import Offsets
from dledger.spark.formats.record_headers import gather
from dledger.spark.ledger.columns import slices
from protocols.wire.rocketmq.layout import NAME_END, VALUE_END
from protocols.wire.rocketmq.message import decode_properties

MAP = pa.map_(pa.string(), pa.string())
#: Names that fit into the bits of a number, of which the sum of all does not overflow.
_BITS = 62
#: The higher of the two separators.
_MARK_MAX = max(ord(NAME_END), ord(VALUE_END))
#: Bytes that are compared at once.
_WORD = 8
_NOWHERE: Offsets = np.empty(0, dtype=np.int64)


@attrs.frozen(kw_only=True, eq=False)
class PropertyColumns:
    """
    The properties of some messages, one after the other.

    @ivar kinds: the different names, in the order in which they come up.
    @ivar codes: the name of each property: its number in C{kinds}.
    @ivar pieces: texts; the odd ones are the values, in order.
    @ivar firsts: the number of the first property of each message, then the number of all.
    @ivar is_uniform: whether each message has all of C{kinds}, in this order.
    """

    kinds: pa.StringArray
    codes: NDArray[np.int32]
    pieces: pa.StringArray
    firsts: Offsets
    is_uniform: bool = False

    @classmethod
    def of(cls, raw: pa.BinaryArray) -> PropertyColumns:
        """@param raw: the stored properties of each message; none is null."""
        found = _by_separators(raw)
        if found is not None:
            return found
        pairs = [decode_properties(value).items() for value in raw.to_pylist()]
        pieces = pa.array([text for one in pairs for pair in one for text in pair], type=pa.string())
        names = pieces.take(pa.array(np.arange(0, len(pieces), 2)))
        return _of_names(names, pieces, np.cumsum([0, *map(len, pairs)], dtype=np.int64))

    def as_maps(self) -> pa.MapArray:
        """A map for each message."""
        values = self.pieces.take(pa.array(np.arange(1, len(self.pieces), 2)))
        return pa.MapArray.from_arrays(pa.array(self.firsts.astype(np.int32)), self._names(), values)

    def _names(self) -> pa.StringArray:
        count, width = len(self.codes), len(self.kinds)
        if not self.is_uniform:
            return self.kinds.take(pa.array(self.codes))
        one = b"".join(self.kinds.cast(pa.binary()).to_pylist())
        edges = np.frombuffer(self.kinds.buffers()[1], dtype=np.int32)[: width + 1]
        offsets = np.empty(count + 1, dtype=np.int32)
        rounds = np.arange(count // width, dtype=np.int32)[:, np.newaxis] * len(one)
        offsets[:-1] = (rounds + edges[:-1]).reshape(-1)
        offsets[-1] = count // width * len(one)
        names = pa.py_buffer(one * (count // width))
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), names)

    def of_name(self, name: str) -> pa.StringArray:
        """The value that each message has under a name; null where it has none."""
        count = len(self.firsts) - 1
        code = self.kinds.index(name).as_py()
        at = np.flatnonzero(self.codes == code) if code >= 0 else _NOWHERE
        if not len(at):
            return pa.nulls(count, type=pa.string())
        # In a message a name is there once at most.
        if len(at) == count:
            return self.pieces.take(pa.array(2 * at + 1))
        parents = np.searchsorted(self.firsts, at, side="right") - 1
        rows = np.full(count, -1, dtype=np.int64)
        rows[parents] = 2 * at + 1
        return self.pieces.take(pa.array(rows, mask=rows < 0))


def _as_texts(pieces: pa.BinaryArray) -> pa.StringArray:
    """Bytes that are known to be UTF-8, without another look at them."""
    return pieces.view(pa.string())


def _of_names(names: pa.StringArray, pieces: pa.StringArray, firsts: Offsets) -> PropertyColumns:
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy()
    return PropertyColumns(kinds=encoded.dictionary, codes=codes, pieces=pieces, firsts=firsts)


def _by_separators(raw: pa.BinaryArray) -> PropertyColumns | None:
    """None: some properties have a shape that the separators alone do not explain."""
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        return None
    count = len(raw)
    edges = np.frombuffer(raw.buffers()[1], dtype=np.int32)[raw.offset : raw.offset + count + 1]
    if not count or edges[0] == edges[-1]:
        none = pa.array([], type=pa.string())
        return _of_names(none, none, np.zeros(count + 1, dtype=np.int64))
    data = np.frombuffer(raw.buffers()[2], dtype=np.uint8)[edges[0] : edges[-1]]
    edges = (edges - edges[0]).astype(np.int64)
    # One look for both separators; what else is as low is rare.
    marks = np.flatnonzero(data <= _MARK_MAX)
    kinds = data[marks]
    name_ends, ends = (np.compress(kinds == ord(mark), marks) for mark in (NAME_END, VALUE_END))
    # The number of the first item of each message, if each item has one end of a name.
    firsts = np.searchsorted(name_ends, edges)
    found = _items(data, edges, firsts, len(name_ends), ends)
    if found is None:
        return None
    begins, ends = found
    if (name_ends < begins).any() or (name_ends >= ends).any():
        return None
    return _of_places(data, firsts, begins, name_ends, ends)


def _items(
    data: NDArray[np.uint8], edges: Offsets, firsts: Offsets, count: int, ends: Offsets
) -> tuple[Offsets, Offsets] | None:
    """
    Where items begin and end. The last item of a message need not have an end of its own.

    @param firsts: the number of the first item of each message, then C{count}.
    @param ends: where there is an end of a value.
    @return: None if they are not C{count} items.
    """
    is_cut = edges[1:] > edges[:-1]
    is_cut[is_cut] = data[edges[1:][is_cut] - 1] != ord(VALUE_END)
    lasts = edges[1:][is_cut]
    if len(ends) + len(lasts) != count:
        return None
    begins = np.empty(count, dtype=np.int64)
    begins[:1] = 0
    if not len(lasts):
        begins[1:] = ends[:-1] + 1
        return begins, ends
    is_last = np.zeros(count, dtype=np.bool_)
    # A message without the end of a name has no last item: another one would be taken, or one twice.
    is_last[firsts[1:][is_cut] - 1] = True
    if int(np.count_nonzero(is_last)) != len(lasts):
        return None
    all_ends = np.empty(count, dtype=np.int64)
    all_ends[is_last], all_ends[~is_last] = lasts, ends
    begins[1:] = np.where(is_last, all_ends, all_ends + 1)[:-1]
    return begins, all_ends


def _of_places(
    data: NDArray[np.uint8], firsts: Offsets, begins: Offsets, name_ends: Offsets, ends: Offsets
) -> PropertyColumns | None:
    """
    @param firsts: the number of the first item of each message, then the number of all.
    @param begins, name_ends, ends: of the items; between name and value is one byte.
    @return: None if a message holds a name twice.
    """
    is_kept = (name_ends > begins) & (name_ends + 1 < ends)  # an item without name or value is none
    if not is_kept.all():
        begins, name_ends, ends = begins[is_kept], name_ends[is_kept], ends[is_kept]
        firsts = np.concatenate([[0], np.cumsum(is_kept)])[firsts]
    if not len(begins):
        none = pa.array([], type=pa.string())
        return _of_names(none, none, firsts)
    places = np.empty((len(begins), 2), dtype=np.int32)
    places[:, 0], places[:, 1] = name_ends + 1, ends
    # Before the first value is a piece that is none, so the values are the odd ones.
    edges = np.concatenate([np.zeros(1, dtype=np.int32), places.reshape(-1)])
    values = _as_texts(slices(data.data, edges))
    shared = _shared_names(data, firsts, begins, name_ends)
    if shared:
        codes = np.tile(np.arange(len(shared), dtype=np.int32), len(firsts) - 1)
        return PropertyColumns(kinds=pa.array(shared, type=pa.string()), codes=codes, pieces=values,
                               firsts=firsts, is_uniform=True)
    places[:, 0], places[:, 1] = begins, name_ends
    # Every other piece is what lies between two names.
    names = slices(data.data, places.reshape(-1)).take(pa.array(np.arange(0, 2 * len(begins) - 1, 2)))
    found = _of_names(_as_texts(names), values, firsts)
    return None if _is_twice(found) else found


def _shared_names(
    data: NDArray[np.uint8], firsts: Offsets, begins: Offsets, name_ends: Offsets
) -> list[str]:
    """The names that each message has, in this order and no others, none twice; empty: they differ."""
    width = int(firsts[1])
    if not width or (np.diff(firsts) != width).any():
        return []
    rows, sizes = begins.reshape(-1, width), (name_ends - begins).reshape(-1, width)
    if (sizes != sizes[0]).any():
        return []
    names = [data[at : at + size].tobytes() for at, size in zip(rows[0].tolist(), sizes[0].tolist(),
                                                                strict=True)]
    if len(set(names)) < width:
        return []
    longest = int(sizes[0].max())
    for at in range(0, longest, _WORD):
        # Eight bytes of each name at once, those after its end masked out.
        pieces = [name[at : at + _WORD].ljust(_WORD, b"\0") for name in names]
        masks = [bytes(min(max(len(name) - at, 0), _WORD) * [255]).ljust(_WORD, b"\0") for name in names]
        chosen = np.flatnonzero(sizes[0] > at)
        wanted = np.frombuffer(b"".join(pieces), dtype=np.uint64)[chosen]
        mask = np.frombuffer(b"".join(masks), dtype=np.uint64)[chosen]
        places = (rows if len(chosen) == width else rows[:, chosen]) + at
        if ((_words(data, places) & mask) != wanted).any():
            return []
    return [name.decode() for name in names]


def _words(data: NDArray[np.uint8], places: Offsets) -> NDArray[np.uint64]:
    """Eight bytes at each place, zeroes after the end."""
    if int(places.max()) + _WORD > len(data):
        data = np.concatenate([data, np.zeros(_WORD, dtype=np.uint8)])
    found = gather(data, places.reshape(-1), np.dtype(np.uint64))
    return found.view(np.uint64).reshape(places.shape)


def _is_twice(found: PropertyColumns) -> bool:
    """Whether a message holds a name twice."""
    firsts, kinds = found.firsts, len(found.kinds)
    counts = np.diff(firsts)
    codes = found.codes
    if kinds > _BITS:
        keys = np.repeat(np.arange(len(counts)), counts) * kinds + codes
        return bool(pc.count_distinct(pa.array(keys)).as_py() != len(keys))
    bits = np.left_shift(np.int64(1), codes)
    starts = firsts[:-1][counts > 0]
    # The sum of different bits is their union.
    return bool((np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)).any())
