# -*- test-case-name: tests.base.test_tokens -*-
"""
The token of a client: a value that every client takes. L{dledger.base.serving.tokens} has the
files.
"""

from __future__ import annotations

import attrs
from attrs.validators import instance_of

#: Longest token that is looked at.
TOKEN_CHARS_MAX = 256


@attrs.frozen
class ClientToken:
    """
    The token that a client of a log shows.

    @ivar text: the token itself; it is in no C{repr}.
    @ivar is_insecure: it is also shown to other machines without TLS, where everybody on the way reads it.
    """

    text: str = attrs.field(repr=False, validator=instance_of(str))
    is_insecure: bool = False

    @text.validator
    def _is_one_word(self, _attribute: object, value: str) -> None:
        if not 0 < len(value) <= TOKEN_CHARS_MAX or not value.isascii() or value.split() != [value]:
            raise ValueError("token: give the token as dledger token printed it")


def as_client_token(token: str | ClientToken | None) -> ClientToken | None:
    """@raise ValueError: a text that can be no token."""
    return ClientToken(token) if isinstance(token, str) else token


def read_token(path: str, option: str) -> str:
    """The token in a file. @param option: that names it. @raise ValueError: it is missing, or has none."""
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(TOKEN_CHARS_MAX + 2).strip()
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    if not token or len(token.split()) != 1 or len(token) > TOKEN_CHARS_MAX:
        raise ValueError(f"{option} {path}: write the token into it, as dledger token printed it")
    return token
