# -*- test-case-name: tests.wire.test_owners -*-
"""
Owners of producers and readers, and the secrets of leases, as entries have them.

An owner is an account, or, of a client without one, C{@} and its address. Only an account owns: what was
begun from an address belongs to nobody. Both have a share of what a group remembers
(L{dledger.values.ledger.group_state}).
"""

from __future__ import annotations

from hashlib import sha256

#: Bytes of an owner at most.
OWNER_BYTES_MAX = 64
_DIGITS = 32
#: The first character of an owner that is an address.
_ADDRESS = "@"


def owner_of(account: str, address: str = "") -> str:
    """
    An account as an entry names it, or the address of a client that has none.

    @param account: empty: it has none. A long one, and one like an address, is named by its checksum.
    @param address: as of L{dledger.values.hosts.shared_address}; empty: it has none, either.
    """
    raw = account.encode("utf-8", "replace")
    if not raw and not address:
        return ""
    reported = raw.decode() or _ADDRESS + address
    if len(reported.encode()) <= OWNER_BYTES_MAX and not account.startswith(_ADDRESS):
        return reported
    return f"{'' if raw else _ADDRESS}sha256:{sha256(reported.encode()).hexdigest()[:_DIGITS]}"


def may_use(owner: str, asker: str) -> bool:
    """Whether a client may go on with what an owner began. Both as of L{owner_of}."""
    return not is_account(owner) or not is_account(asker) or owner == asker


def is_account(owner: str) -> bool:
    """Whether it is an account, neither an address nor nobody."""
    return bool(owner) and not owner.startswith(_ADDRESS)


def proof_of(secret: str) -> int:
    """The number of 64 bits by which the holder of a secret is known again; 0 for none."""
    return int.from_bytes(sha256(secret.encode()).digest()[:8], "big", signed=True) if secret else 0
