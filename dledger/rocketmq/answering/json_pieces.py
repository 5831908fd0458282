# -*- test-case-name: tests.base.commands.test_json_pieces -*-
"""
Reads a long JSON object in pieces: its text is decoded L{CHUNK_BYTES} at a time, and each value that is asked
for is parsed alone, so that neither the whole text nor the whole document is in memory.

Rule: a value has at most L{VALUE_BYTES_MAX} bytes. What is skipped may be longer, up to L{SKIPPED_MAX} words,
and as loose as Java writes it: bare numbers as keys.
"""

from __future__ import annotations

import codecs
import re

from dledger.rocketmq.answering.pieces import Pieces
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import read_value, shown

#: Bytes that are decoded at a time, and of the longest value.
CHUNK_BYTES = 32 * 1024
VALUE_BYTES_MAX = 64 * 1024
#: Members of objects, and words of what is skipped, in one piece.
MEMBERS, WORDS = 200, 1000
#: Words that are skipped in one text.
SKIPPED_MAX = 1_000_000

_SPACE = re.compile(r"[ \t\r\n]*")
_SKIPPED = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]]|[^"{}\[\],]+|,', re.DOTALL)


class JsonPieces:
    """
    One text, front to back.

    Invariant: C{_text} has the characters from C{_at} on that are decoded and not read. C{_is_first}: an
    object has begun, and has no member so far.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._next = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._is_first = False
        self._members = self._skipped = 0

    def _more(self) -> bool:
        """Decode more. @return: whether there was more. @raise BodyError: it is not UTF-8."""
        if self._next >= len(self._body):
            return False
        chunk = self._body[self._next : self._next + CHUNK_BYTES]
        self._next += len(chunk)
        try:
            text = self._decoder.decode(chunk, self._next >= len(self._body))
        except UnicodeDecodeError:
            raise BodyError(f"body is not UTF-8 before byte {self._next}") from None
        self._text = self._text[self._at:] + text
        self._at = 0
        return True

    def _peek(self) -> Pieces[str]:
        """The next character that is no blank; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None  # it may be empty
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""
            yield

    def begin(self, what: str, *, or_null: bool = False) -> Pieces[bool]:
        """
        An object begins; L{key} reads its members.

        @param or_null: null instead of it is read, and is none.
        @raise BodyError: something else comes.
        """
        if (yield from self._peek()) == "{":
            self._at += 1
            self._is_first = True
            return True
        value = yield from self.value()
        if value is None and or_null:
            return False
        raise BodyError(f"{what}={shown(value)} is not an object")

    def key(self) -> Pieces[str | None]:
        """The key of the next member of the object; None: it has ended."""
        first = yield from self._peek()
        is_first, self._is_first = self._is_first, False
        if first == "}":
            self._at += 1
            return None
        if not is_first:
            if first != ",":
                raise self._error("neither comma nor }")
            self._at += 1
        if (yield from self._peek()) != '"':
            raise self._error("no key")
        key = yield from self.value()
        if (yield from self._peek()) != ":":
            raise self._error("no colon")
        self._at += 1
        assert isinstance(key, str)
        self._members += 1
        if not self._members % MEMBERS:
            yield
        return key

    def value(self) -> Pieces[object]:
        """The next value. @raise BodyError: malformed, or longer than L{VALUE_BYTES_MAX}."""
        yield from self._peek()
        while True:
            try:
                value, at = read_value(self._text, self._at)
            except BodyError:
                at = len(self._text)
                value = None
            # At the end of what is decoded a number may go on.
            if at < len(self._text):
                self._at = at
                return value
            if len(self._text) - self._at > VALUE_BYTES_MAX or not self._more():
                break
            yield
        value, self._at = read_value(self._text, self._at)
        return value

    def skip(self) -> Pieces[None]:
        """Pass over the next value."""
        yield from self._peek()
        depth = 0
        while True:
            self._skipped += 1
            if not self._skipped % WORDS:
                if self._skipped >= SKIPPED_MAX:
                    raise self._error(f"{SKIPPED_MAX} words that nobody reads")
                yield
            match = _SKIPPED.match(self._text, self._at)
            if match is None or match.end() == len(self._text):
                if len(self._text) - self._at > VALUE_BYTES_MAX or not self._more():
                    raise self._error("a text without an end")
                yield
                continue
            token = match[0]
            if depth == 0 and (token in ",}]"):
                return
            self._at = match.end()
            depth += (token in "{[") - (token in "}]")
            if depth == 0 and token[0] in '"}]':
                return

    def end(self) -> Pieces[None]:
        """@raise BodyError: something follows."""
        if (yield from self._peek()):
            raise self._error("text after the closing brace")

    def _error(self, what: str) -> BodyError:
        return BodyError(f"body is not JSON: {what} before byte {self._next}")
