# -*- test-case-name: tests.fuzz.test_decoders -*-
"""
The replication stream of a master and the reports of a slave, damaged: they yield pieces that fit together,
or L{WireError}, whole and in pieces alike, with bounded memory.
"""

from __future__ import annotations

import random

from protocols.wire.errors import WireError
from protocols.wire.rocketmq.ha import (
    BODY_SIZE_MAX,
    TRANSFER_HEADER,
    TRANSFER_HEADER_SIZE,
    Piece,
    ReportReader,
    TransferReader,
    encode_report,
)
from tests.fuzz.mutation import damaged

_BODIES = (b"", b"x", b"hello" * 9, bytes(200))
_FRAMES = tuple(TRANSFER_HEADER.pack(offset, len(body)) + body
                for offset in (0, 326, 1 << 40) for body in _BODIES)
_REPORTS = tuple(encode_report(offset) for offset in (0, 1, 326, 1 << 40))


def _read(data: bytes, cuts: list[int]) -> tuple[list[tuple[int, bytes]], str]:
    """Non-empty pieces, adjacent ones joined; and the error, if any."""
    reader = TransferReader()
    pieces: list[tuple[int, bytes]] = []
    for low, high in zip([0, *cuts], [*cuts, len(data)], strict=True):
        found: list[Piece] = []
        problem = ""
        try:
            reader.feed(data[low:high], found)
        except WireError as error:
            problem = str(error)
        assert len(reader._kept) < TRANSFER_HEADER_SIZE
        for offset, body in found:
            assert offset >= 0 and len(body) <= BODY_SIZE_MAX
            if pieces and pieces[-1][0] + len(pieces[-1][1]) == offset:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + bytes(body))
            elif len(body):
                pieces.append((offset, bytes(body)))
        if problem:
            return pieces, problem
    return pieces, ""


def fuzz_ha(rng: random.Random) -> None:
    """Read a few damaged frames, cut anywhere; and a few damaged reports."""
    data = b"".join(damaged(rng.choice(_FRAMES), _FRAMES, rng) for _ in range(1 + int(rng.random() * 4)))
    cuts = sorted(int(rng.random() * (len(data) + 1)) for _ in range(int(rng.random() * 5)))
    assert _read(data, cuts) == _read(data, []), (data, cuts)
    reports = b"".join(damaged(rng.choice(_REPORTS), _REPORTS, rng) for _ in range(3))
    last: list[int | str | None] = []
    for size in (len(reports) or 1, 1, 3):
        reader, found = ReportReader(), None
        try:
            for at in range(0, len(reports), size):
                reported = reader.feed(reports[at : at + size])
                found = reported if reported is not None else found
                assert len(reader._kept) < 8
        except WireError:
            break  # of several reports in one read only the last is checked
        last.append(found)
    assert len(set(last)) <= 1, (reports, last)
