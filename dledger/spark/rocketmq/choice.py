# -*- test-case-name: tests.spark.test_choice -*-
"""
Which messages a scan shows: options C{topics}, C{tags}, C{keys}, C{storedFrom} and C{storedBefore}.

The others are read, and compared with their places, but their bodies and properties are not decoded. The
clock of a broker may go back, so no part of a log is left out because of a time.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dledger.spark.formats.options import ScanOptions
from dledger.spark.rocketmq.properties import PropertyColumns

Chosen: TypeAlias = NDArray[np.bool_]


def has_choice(options: ScanOptions) -> bool:
    """Whether the options leave out any message."""
    return bool(options.topics or options.tags or options.keys) or (
        options.stored_from is not None or options.stored_before is not None)


def by_time(options: ScanOptions, stored_ms: NDArray[np.int64]) -> Chosen:
    """@param stored_ms: the broker's clock, as each message holds it."""
    chosen = np.ones(len(stored_ms), dtype=np.bool_)
    if options.stored_from is not None:
        chosen &= stored_ms >= options.stored_from
    if options.stored_before is not None:
        chosen &= stored_ms < options.stored_before
    return chosen


def by_topic(options: ScanOptions, topics: pa.BinaryArray) -> Chosen:
    """@param topics: of the messages, as stored."""
    if not options.topics:
        return np.ones(len(topics), dtype=np.bool_)
    wanted = pa.array([topic.encode() for topic in options.topics], type=pa.binary())
    return np.asarray(pc.is_in(topics, value_set=wanted), dtype=np.bool_)


def by_properties(options: ScanOptions, stored: pa.BinaryArray) -> Chosen:
    """@param stored: the properties of the messages."""
    chosen = np.ones(len(stored), dtype=np.bool_)
    if not (options.tags or options.keys):
        return chosen
    found = PropertyColumns.of(stored)
    if options.tags:
        tags = pc.fill_null(found.of_name("TAGS"), "")
        chosen &= np.asarray(pc.is_in(tags, value_set=pa.array(options.tags)), dtype=np.bool_)
    if options.keys:
        # A producer's keys are separated by blanks.
        keys = pc.binary_join_element_wise("", pc.fill_null(found.of_name("KEYS"), ""), "", " ")
        has_key = np.zeros(len(stored), dtype=np.bool_)
        for key in options.keys:
            has_key |= np.asarray(pc.match_substring(keys, f" {key} "), dtype=np.bool_)
        chosen &= has_key
    return chosen
