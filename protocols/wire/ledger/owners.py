# -*- test-case-name: tests.wire.test_owners -*-
"""
The accounts that began producers and readers, and the secrets of leases, as entries have them.

Without certificates and tokens nobody has an account, and what was begun then belongs to nobody.
"""

from __future__ import annotations

from hashlib import sha256

#: Bytes of an owner at most.
OWNER_BYTES_MAX = 64
_DIGITS = 32


def owner_of(account: str) -> str:
    """The name of an account as an entry has it; a long one is named by its checksum. Empty for none."""
    raw = account.encode("utf-8", "replace")
    if len(raw) <= OWNER_BYTES_MAX:
        return raw.decode()
    return f"sha256:{sha256(raw).hexdigest()[:_DIGITS]}"


def may_use(owner: str, account: str) -> bool:
    """Whether an account may go on with what an owner began. Both as of L{owner_of}."""
    return not owner or not account or owner == account


def proof_of(secret: str) -> int:
    """The number of 64 bits by which the holder of a secret is known again; 0 for none."""
    return int.from_bytes(sha256(secret.encode()).digest()[:8], "big", signed=True) if secret else 0
