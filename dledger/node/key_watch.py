# -*- test-case-name: tests.node.test_key_watch -*-
"""
Watches a member's TLS keys: reads changed files again, and says in time when a certificate ends. It also says
when the certificate is of another member, as peers and clients refuse it then.

While new keys are not sound, a member goes on with those that it has; open connections keep theirs.
"""

from __future__ import annotations

from twisted.logger import Logger

from dledger.base.tls.securing import Securing

#: A certificate that ends within this many seconds is named in the log, once in L{SAY_AGAIN_S}.
SOON_S = 30 * 86400
SAY_AGAIN_S = 86400


class KeyWatch:
    """One member's keys."""

    log = Logger()

    def __init__(self, keys: Securing | None, self_id: str) -> None:
        """@param keys: None: a member without TLS."""
        self._keys = keys
        self._self_id = self_id
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
                self.log.info("member {self_id}: new TLS keys are in use", self_id=self._self_id)
                self._check_name()
        except ValueError as error:
            self.log.error(
                "member {self_id} goes on with its old TLS keys, the new ones are not sound: {reason}",
                self_id=self._self_id, reason=str(error),
            )
        left_s = keys.expires_s - now_s
        if left_s < SOON_S and now_s - self._said_s >= SAY_AGAIN_S:
            self._said_s = now_s
            self.log.warn(
                "member {self_id}: its TLS certificate {ends} ({path}): put a new one in its place, no "
                "restart is needed", self_id=self._self_id, path=keys.files.certificate,
                ends=f"ends in {left_s / 86400:.0f} days" if left_s > 0 else "has ended, peers refuse it",
            )

    def _check_name(self) -> None:
        keys = self._keys
        if keys is not None and self._self_id not in keys.names:
            self.log.error(
                "member {self_id}: its TLS certificate ({path}) has no DNS name {self_id}, only {names}: "
                "members and clients refuse it", self_id=self._self_id, path=keys.files.certificate,
                names=", ".join(sorted(keys.names)) or "none",
            )
