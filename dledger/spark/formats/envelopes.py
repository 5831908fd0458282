# -*- test-case-name: tests.spark.test_envelopes -*-
"""
Times and headers of entries as columns, with option C{envelopes}; see docs/envelopes.md.

Bodies that do not begin as an envelope cost one comparison of Arrow for all of them; the others are decoded
by Python, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from protocols.wire.ledger.envelopes import ENVELOPE_MAGIC, decode_envelope, guarded

TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.binary())


class OpenedBodies(NamedTuple):
    """
    Arrays of one length.

    @ivar bodies: of the programs.
    @ivar times: null where an entry has none.
    @ivar headers: an empty map where an entry has none.
    """

    bodies: pa.Array
    times: pa.Array
    headers: pa.Array


def _looks_so(bodies: pa.Array) -> pa.BooleanArray:
    """Which bodies begin as an envelope does."""
    return pc.starts_with(bodies, ENVELOPE_MAGIC)


def open_bodies(bodies: pa.Array, is_programs: NDArray[np.bool_]) -> OpenedBodies:
    """
    Take the programs' bodies out of their envelopes.

    @param is_programs: which entries are those of programs; the others have no envelope.
    """
    found = np.asarray(_looks_so(bodies)) & is_programs
    count = len(bodies)
    if not found.any():
        none = pa.MapArray.from_arrays(
            np.zeros(count + 1, dtype=np.int32), pa.array([], pa.string()), pa.array([], pa.binary())
        )
        return OpenedBodies(bodies, pa.nulls(count, TIME), none)
    rows = bodies.to_pylist()
    times: list[int | None] = [None] * count
    headers: list[Iterable[tuple[str, bytes]]] = [()] * count
    for at in np.flatnonzero(found).tolist():
        envelope = decode_envelope(rows[at])
        if envelope is not None:
            rows[at] = envelope.body
            times[at] = None if envelope.time_ms is None else envelope.time_ms * 1000
            headers[at] = envelope.headers.items()
    return OpenedBodies(
        pa.array(rows, pa.binary()), pa.array(times, pa.int64()).cast(TIME),
        pa.array(map(list, headers), HEADERS),
    )


def guarded_bodies(bodies: pa.Array) -> pa.Array:
    """Bodies for the log: those that begin as an envelope are put into one, so readers see them whole."""
    if not pc.any(_looks_so(bodies)).as_py():
        return bodies

    def each() -> Iterator[bytes | None]:
        for row in bodies.to_pylist():
            yield None if row is None else guarded(row)

    return pa.array(each(), pa.binary())
