# -*- test-case-name: tests.base.test_tokens -*-
"""
Tokens: random texts whose holders may do something. Of an administration: change something. Of a log: what
their roles allow (L{ClientTokenFile}).

A file has one line for each token, C{NAME sha256 HASH} of an administration, C{NAME sha256 HASH ROLE GROUPS}
of a log; empty lines and lines that begin with C{#} mean nothing. Several lines may have one name: the old
token and the new one, while holders change over. C{GROUPS} are names of groups with commas between them, each
percent-encoded, or C{*} for every group.

Rule 1: no file has the token itself. A token of L{new_token} has 256 random bits, so its hash needs neither
salt nor slowness.
Rule 2: the time of a comparison says nothing of a hash: all lines are compared, each in constant time.
Rule 3: the file is read again when it has changed. A file that is not sound changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable
from urllib.parse import quote, unquote

import attrs

from dledger.values.client_token import TOKEN_CHARS_MAX
from dledger.values.rights import ClientRole

#: Longest file, and most tokens in it.
TOKEN_FILE_BYTES_MAX = 64 * 1024
TOKENS_MAX = 256

_LINE = re.compile(r"([A-Za-z0-9_.-]{1,64})[ \t]+sha256[ \t]+([0-9a-f]{64})(?:[ \t]+([a-z]+)[ \t]+(\S+))?")
#: Every group.
_EVERY_GROUP = "*"
_TOKEN_BYTES = 32


def is_token_name(name: str) -> bool:
    """Whether a name can stand in a file."""
    return re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) is not None


def new_token(name: str, role: ClientRole | None = None, groups: Iterable[str] = ()) -> tuple[str, str]:
    """
    A new token, and its line of a file.

    @param name: see L{is_token_name}.
    @param role, groups: of a token of logs; no group: of every one.
    """
    assert is_token_name(name), name
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    line = f"{name} sha256 {hashed_token(token)}"
    if role is not None:
        names = ",".join(quote(group, safe="") for group in groups)
        line += f" {role} {names or _EVERY_GROUP}"
    return token, line + "\n"


def hashed_token(token: str) -> str:
    """As in a file."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@attrs.frozen(kw_only=True)
class Grant:
    """
    What the holder of a token may do.

    @ivar name, hashed: of the token. @ivar role: None in a file of an administration.
    @ivar groups: of which groups; empty: of every one.
    """

    name: str
    hashed: str
    role: ClientRole | None = None
    groups: frozenset[str] = frozenset()


class TokenFile:
    """The tokens of one file, of an administration."""

    #: The option that names the file, and whether its lines have roles.
    option, has_roles = "admin_token_file", False

    def __init__(self, path: str) -> None:
        """@raise ValueError: the file is missing, or not sound."""
        self._path = path
        self._seen = self._stamp()
        self._grants = self._read()

    @property
    def path(self) -> str:
        """The file."""
        return self._path

    def refresh(self) -> bool:
        """
        Read the file again if it has changed.

        @return: whether there are new tokens.
        @raise ValueError: it is missing, or not sound; the old tokens stay. Raised once for each change.
        """
        seen = self._stamp()
        if seen == self._seen:
            return False
        self._seen = seen
        self._grants = self._read()
        return True

    def holder(self, token: str) -> str | None:
        """The name of a token; None if it is unknown."""
        found = self.grant(token)
        return None if found is None else found.name

    def grant(self, token: str) -> Grant | None:
        """What a token grants; None if it is unknown."""
        return None if len(token) > TOKEN_CHARS_MAX else self.grant_of(hashed_token(token))

    def grant_of(self, hashed: str) -> Grant | None:
        """As L{grant}, by the hash of a token."""
        found = None
        for known in self._grants:
            if hmac.compare_digest(hashed, known.hashed):
                found = known
        return found

    def _stamp(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self._path)
        except OSError:
            return (-1, -1, -1)
        return (status.st_mtime_ns, status.st_size, status.st_ino)


    def _read(self) -> tuple[Grant, ...]:
        named = f"{self.option}={self._path}"
        try:
            with open(self._path, "rb") as file:
                data = file.read(TOKEN_FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ValueError(f"{named}: {error.strerror}") from None
        if len(data) > TOKEN_FILE_BYTES_MAX:
            raise ValueError(f"{named}: it has more than {TOKEN_FILE_BYTES_MAX} bytes")
        found = []
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            grant = _grant(line.strip())
            if grant is None or (grant.role is not None) != self.has_roles:
                # (The line itself is not shown: it may be a token.)
                form = "NAME sha256 HASH" + (" ROLE GROUPS" if self.has_roles else "")
                role = " --role" if self.has_roles else ""
                raise ValueError(f"{named}: line {number} is not {form}: make it with dledger token{role}")
            found.append(grant)
        if not 0 < len(found) <= TOKENS_MAX:
            raise ValueError(f"{named}: it has {len(found)} tokens, allowed: 1 to {TOKENS_MAX}")
        return tuple(found)


class ClientTokenFile(TokenFile):
    """The tokens of one file, of clients of logs."""

    option, has_roles = "client_token_file", True


def _grant(line: str) -> Grant | None:
    known = _LINE.fullmatch(line)
    if known is None:
        return None
    name, hashed, role, groups = known.groups()
    if role is None:
        return Grant(name=name, hashed=hashed)
    if role not in ClientRole.__members__.values():
        return None
    named = frozenset() if groups == _EVERY_GROUP else frozenset(map(unquote, groups.split(",")))
    return Grant(name=name, hashed=hashed, role=ClientRole(role), groups=named)
