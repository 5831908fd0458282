# -*- test-case-name: tests.base.test_securing -*-
"""The files of a TLS identity. Their contents are read by L{dledger.base.tls.keys}."""

from __future__ import annotations

import attrs
from attrs.validators import instance_of


@attrs.frozen(kw_only=True)
class TlsFiles:
    """
    Paths of three PEM files.

    @ivar certificate: the own certificate; certificates between it and the authority may follow.
    @ivar key: its private key, without a password.
    @ivar authority: certificates of the authorities that are believed.
    """

    certificate: str = attrs.field(validator=instance_of(str))
    key: str = attrs.field(validator=instance_of(str))
    authority: str = attrs.field(validator=instance_of(str))


def tls_files(*, certificate: str, key: str, authority: str) -> TlsFiles | None:
    """
    @return: None if no file is named.
    @raise ValueError: some are named, but not all three.
    """
    named = {"certificate": certificate, "key": key, "authority": authority}
    missing = [name for name, path in named.items() if not path]
    if len(missing) == len(named):
        return None
    if missing:
        raise ValueError(f"TLS needs three files; missing: {', '.join(f'tls_{name}' for name in missing)}")
    return TlsFiles(**named)
