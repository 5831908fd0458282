# -*- test-case-name: tests.admin.test_guard -*-
"""
The right to ask an administration for something.

Rule 1: every method but GET and HEAD needs a token, whether a page takes it or not: a page that changes
something cannot be forgotten here.
Rule 2: without a file of tokens nothing can be changed, also not from the loopback interface: other users of
the machine can reach that, too.
Rule 3: where the clients of the log need rights or a token changes something, L{CONTENT_PATHS} need a token,
too: the pages are no way around those rights.
Rule 4: the log has the name of the token that changed something; refusals are there once, and then counted.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

import attrs
from twisted.logger import Logger

from dledger.base.serving.folding import Folding
from dledger.base.serving.tokens import TokenFile

#: Seconds between two looks at the file of tokens.
LOOK_S = 1.0

#: Pages that stay open when reading needs a token: for what restarts a member, or sends it traffic, and the
#: frames for browsers, which have no numbers then and ask a person for the token.
OPEN_PATHS = ("/", "/healthz", "/readyz", "/browse", "/actions")
#: Pages that show what an action would do: for those who may do it.
ACTION_PATHS = ("/effects",)
#: Pages that show what clients have stored.
CONTENT_PATHS = ("/entries", "/messages")
_READING = ("GET", "HEAD")
_SCHEME = "bearer "


@attrs.frozen
class GuardRefusal:
    """@ivar status: of HTTP. @ivar reason: for people."""

    status: int
    reason: str


class AdminGuard:
    """The tokens of one administration."""

    log = Logger()

    def __init__(
        self, seconds: Callable[[], float], *, token_file: str = "", reads_need_token: bool = False,
        contents_need_token: bool = False,
    ) -> None:
        """
        @param seconds: a monotonic clock.
        @param token_file: path of a L{TokenFile}; empty: there are no tokens.
        @param reads_need_token: all pages but L{OPEN_PATHS} need a token.
        @param contents_need_token: L{CONTENT_PATHS} need a token; they also do where there are tokens.
        @raise ValueError: the file is missing, or not sound.
        """
        self._seconds = seconds
        self._tokens = TokenFile(token_file) if token_file else None
        self._reads_need_token = reads_need_token
        self._contents_need_token = contents_need_token or bool(token_file)
        self._looked_s = seconds()
        self._folding = Folding(seconds)
        #: Refused requests.
        self.refused = 0

    def refusal(self, method: str, path: str, authorization: str, address: str) -> GuardRefusal | None:
        """
        Why a request is not taken; None if it is.

        @param authorization: the header of that name; empty without it.
        @param address: of the asking host, for the log.
        """
        is_read = method in _READING
        if is_read and not self._is_read_guarded(path):
            return None
        self._look()
        if self._tokens is None:
            return self._refused(403, "this needs a token, and none is known here: start the server with "
                                 "admin_token_file", address)
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return self._refused(401, "this needs a token, in a header Authorization: Bearer TOKEN", address)
        holder = self._tokens.holder(authorization[len(_SCHEME) :].strip())
        if holder is None:
            return self._refused(401, "the token is not known here", address)
        if not is_read:
            self.log.info("administration: {holder} at {address} asks {method} {path}", holder=holder,
                          address=address, method=method[:16], path=path[:200])
        return None

    def _is_read_guarded(self, path: str) -> bool:
        # (Klein takes a path with more slashes, or with escapes, for the same page.)
        if any(one.strip("/") in unquote(path) for one in ACTION_PATHS):
            return True
        if self._reads_need_token:
            return path not in OPEN_PATHS
        return self._contents_need_token and any(one.strip("/") in unquote(path) for one in CONTENT_PATHS)

    def _look(self) -> None:
        tokens, now_s = self._tokens, self._seconds()
        if tokens is None or now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        self._folding.sweep(now_s)
        try:
            if tokens.refresh():
                self.log.info("administration: new tokens of {path} are in use", path=tokens.path)
        except ValueError as error:
            self.log.error("administration goes on with its old tokens: {reason}", reason=str(error))

    def _refused(self, status: int, reason: str, address: str) -> GuardRefusal:
        self.refused += 1
        repeated = self._folding.happened(("refused", address, reason))
        if repeated is not None:
            self.log.warn("administration: a request from {address} was refused: {reason}", address=address,
                          reason=reason, **repeated)
        return GuardRefusal(status, reason)
