# -*- test-case-name: tests.spark.test_stream -*-
"""
Proofs: a few facts about a log before an offset, small enough for an offset in a checkpoint.

A log that was wiped, restored or exchanged has other facts at the same offset: another id of its group, or
another last record. Facts that only one side knows prove nothing; Java's directories record no id.

Knows nothing of files and sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from protocols.wire.checksums import crc32
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, MAGIC

#: C{group_id}; C{term}, C{pos}, C{size} and C{crc} of a record; or C{bytes} and C{crc} of a range. The
#: checksums are CRC-32s of the stored bytes, so they also distinguish Java's records, which have none.
Proof: TypeAlias = Mapping[str, int | str]

#: Before the name of the group: the key of the proof in an offset.
PROOF_KEY = "proof."


def of_group(group_id: str) -> dict[str, int | str]:
    """@param group_id: empty: not known."""
    return {"group_id": group_id} if group_id else {}


def of_record(record: bytes | memoryview, index: int) -> dict[str, int | str] | None:
    """The facts of a ledger's record; None if it is not the sound record of entry C{index}."""
    if len(record) < ENTRY_HEADER_SIZE:
        return None
    magic, size, number, term, pos, _channel, _chain, body_crc, length = ENTRY_HEADER.unpack_from(record)
    if magic != MAGIC or number != index or size != len(record) or length != size - ENTRY_HEADER_SIZE:
        return None
    if body_crc and crc32(record[ENTRY_HEADER_SIZE:]) != body_crc & 0xFFFFFFFF:
        return None
    return {"term": term, "pos": pos, "size": size, "crc": crc32(record)}


def of_bytes(data: bytes) -> dict[str, int | str]:
    """The facts of the bytes before an offset."""
    return {"bytes": len(data), "crc": crc32(data)}


def difference(recorded: Proof, found: Proof) -> str:
    """How two proofs of the same offset contradict each other, in words; empty if they do not."""
    names = [name for name in recorded if name in found and recorded[name] != found[name]]
    if not names:
        return ""
    return f"it had {_shown({name: recorded[name] for name in names})}, and now has " + _shown(
        {name: found[name] for name in names})


def _shown(facts: Proof) -> str:
    """The facts in words."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())
