# -*- test-case-name: tests.wire.test_time_entries -*-
"""Time entries as bytes."""

from __future__ import annotations

import random
from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.ledger.own.time_entries import (
    RESETS_MAX,
    TIME_ENTRY_DECLARATION,
    TIME_MS_MAX,
    TimeNote,
    TimeReset,
    decode_resets,
    decode_time_entry,
    encode_resets,
    encode_time_entry,
    shown_time_ms,
    with_reset,
)

#: 2026-01-02T03:04:05.678Z
NOW_MS = 1_767_323_045_678


class TimeEntryTests(SynchronousTestCase):
    """The only kind there is."""

    def test_bytes(self) -> None:
        """As they were at first, and as declared."""
        body = encode_time_entry(NOW_MS)
        self.assertEqual(body.hex(), "54494d4500000001" "9f25ea4d" "0000019b7ca98f2e")
        self.assertEqual(TIME_ENTRY_DECLARATION.parse(body).time_ms, NOW_MS)
        self.assertEqual(decode_time_entry(body), TimeNote(NOW_MS))

    def test_bounds(self) -> None:
        """1970 and the end of 9999; a time outside is refused, whoever wrote it."""
        for time_ms in (0, TIME_MS_MAX):
            self.assertEqual(decode_time_entry(encode_time_entry(time_ms)), TimeNote(time_ms))
        for time_ms in (-1, TIME_MS_MAX + 1):
            raw = time_ms.to_bytes(8, "big", signed=True)
            body = encode_time_entry(0)[:8] + crc32(raw).to_bytes(4, "big") + raw
            self.assertIn("are allowed", str(self.assertRaises(WireError, decode_time_entry, body)))

    def test_malformed(self) -> None:
        """Every cut, every bit, and another version."""
        body = encode_time_entry(NOW_MS, (TimeReset(7, 5), TimeReset(-1, NOW_MS)))
        for size in range(len(body)):
            self.assertRaises(WireError, decode_time_entry, body[:size])
        for bit in range(8 * len(body)):
            wrong = bytearray(body)
            wrong[bit // 8] ^= 1 << bit % 8
            self.assertRaises(WireError, decode_time_entry, bytes(wrong))
        later = body[:7] + b"\x02" + body[8:]
        self.assertIn("upgrade", str(self.assertRaises(WireError, decode_time_entry, later)))


class ResetTests(SynchronousTestCase):
    """Times that were ahead, and go on from true ones."""

    def test_bytes(self) -> None:
        """Each reset is two numbers after the time; the last one may be the entry itself."""
        note = TimeNote(NOW_MS, (TimeReset(7, 5), TimeReset(-1, NOW_MS)))
        body = encode_time_entry(*note)
        self.assertEqual(
            body[20:].hex(), "00000000000000070000000000000005" "ffffffffffffffff0000019b7ca98f2e"
        )
        self.assertEqual(decode_time_entry(body), note)
        self.assertEqual(note.at(9).resets, (TimeReset(7, 5), TimeReset(9, NOW_MS)))

    def test_disorder_is_refused(self) -> None:
        """Indexes rise, times do not fall, none is later than the entry, and there are not too many."""
        for resets in (
            ((7, 5), (7, 6)), ((9, 5), (7, 6)), ((-1, 5), (7, 6)), ((-2, 5),), ((7, 6), (9, 5)), ((7, 11),),
            ((7, -1),), ((-1, 5), (-1, 5)),
        ):
            body = encode_time_entry(10, [TimeReset(*one) for one in resets])
            self.assertRaises(WireError, decode_time_entry, body)
        many = encode_time_entry(10, [TimeReset(at, 5) for at in range(RESETS_MAX)])
        decode_time_entry(many)
        self.assertRaises(WireError, decode_time_entry, many + many[-16:])

    def test_text(self) -> None:
        """As METADATA has them; none of what is not understood."""
        resets = (TimeReset(7, 5), TimeReset(9, NOW_MS))
        self.assertEqual(decode_resets(encode_resets(resets)), resets)
        self.assertEqual(encode_resets(()), "")
        for text in ("", "7", "7:x", "7:5:6", "7:5;;", ";".join(["7:5"] * (RESETS_MAX + 2))):
            self.assertEqual(decode_resets(text), ())

    def test_shown_times_never_fall(self) -> None:
        """Over any number of resets, to whatever times, each reader sees times that rise with the index."""
        chance = random.Random(7)
        for _ in range(300):
            log: list[int] = []
            note = TimeNote(0)
            for index in range(60):
                if chance.random() < 0.2:
                    note = with_reset(note.resets, chance.randrange(note.time_ms + 1)).at(index)
                else:
                    note = note._replace(time_ms=note.time_ms + chance.choice((0, 1, 50)))
                log.append(note.time_ms)
            shown = [shown_time_ms(index, time_ms, note.resets) for index, time_ms in enumerate(log)]
            self.assertEqual(shown, sorted(shown))
            self.assertTrue(all(one <= noted for one, noted in zip(shown, log, strict=True)))
            self.assertLessEqual(len(note.resets), RESETS_MAX)
            if note.resets:
                last = note.resets[-1].entry_index
                self.assertEqual(shown[last:], log[last:], "after the last one they are those of the log")
