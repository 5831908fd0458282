# -*- test-case-name: tests.base.test_key_watch -*-
"""
Watches the TLS keys of a member or a broker: reads changed files again, and says in time when a certificate
ends. It also says when a member's certificate is of another member, as peers and clients refuse it then.

While new keys are not sound, the old ones stay in use; open connections keep theirs.
"""

from __future__ import annotations

from twisted.logger import Logger

from dledger.base.tls.securing import Securing

#: A certificate that ends within this many seconds is named in the log, once in L{SAY_AGAIN_S}.
SOON_S = 30 * 86400
SAY_AGAIN_S = 86400


class KeyWatch:
    """The keys of one process."""

    log = Logger()

    def __init__(self, keys: Securing | None, owner: str, *, member_id: str | None = None) -> None:
        """
        @param keys: None: without TLS.
        @param owner: C{member n0}, for the log.
        @param member_id: the name that the certificate must have; None: any.
        """
        self._keys = keys
        self._owner = owner
        self._member_id = member_id
        self._said_s = float("-inf")
        self._check_name()

    @property
    def expires_s(self) -> float:
        """The end of the certificate, seconds since 1970; -1 without TLS."""
        return self._keys.expires_s if self._keys is not None else -1.0

    def check(self, now_s: float) -> None:
        """Time passed. @param now_s: seconds since 1970."""
        keys = self._keys
        if keys is None:
            return
        try:
            if keys.refresh():
                self._said_s = float("-inf")
                self.log.info("{owner}: new TLS keys are in use", owner=self._owner)
                self._check_name()
        except ValueError as error:
            self.log.error(
                "{owner} goes on with its old TLS keys, the new ones are not sound: {reason}",
                owner=self._owner, reason=str(error),
            )
        left_s = keys.expires_s - now_s
        if left_s < SOON_S and now_s - self._said_s >= SAY_AGAIN_S:
            self._said_s = now_s
            self.log.warn(
                "{owner}: its TLS certificate {ends} ({path}): put a new one in its place, no restart is "
                "needed", owner=self._owner, path=keys.files.certificate,
                ends=f"ends in {left_s / 86400:.0f} days" if left_s > 0 else "has ended, peers refuse it",
            )

    def _check_name(self) -> None:
        keys = self._keys
        if keys is not None and self._member_id is not None and self._member_id not in keys.names:
            self.log.error(
                "{owner}: its TLS certificate ({path}) has no DNS name {member_id}, only {names}: members "
                "and clients refuse it", owner=self._owner, member_id=self._member_id,
                path=keys.files.certificate, names=", ".join(sorted(keys.names)) or "none",
            )
