# -*- test-case-name: tests.base.test_securing -*-
"""
The files of a TLS identity. Their contents are read by L{dledger.base.tls.keys}.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from attrs.validators import instance_of

#: Of a port of RocketMQ's kind: no connections by TLS, both kinds, no others.
TLS_MODES = ("disabled", "permissive", "enforcing")
#: Whether clients must show a certificate there.
CLIENT_AUTHS = ("none", "require")

#: Which certificates make a slave of a broker: those that say so, or any of the authority.
SLAVE_AUTHS = ("role", "any")


@attrs.frozen(kw_only=True)
class TlsFiles:
    """
    Paths of three PEM files; of a client that has a token, the last alone.

    @ivar certificate: the own certificate; certificates between it and the authority may follow.
    @ivar key: its private key, without a password.
    @ivar authority: certificates of the authorities that are believed.
    """

    certificate: str = attrs.field(default="", validator=instance_of(str))
    key: str = attrs.field(default="", validator=instance_of(str))
    authority: str = attrs.field(validator=instance_of(str))

    @authority.validator
    def _are_a_pair(self, _attribute: object, _value: str) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("TLS needs a certificate and its key, or neither of them")


def tls_files(
    *, certificate: str, key: str, authority: str, is_client_with_token: bool = False
) -> TlsFiles | None:
    """
    @param is_client_with_token: it needs the last file only.
    @return: None if no file is named.
    @raise ValueError: some are named, but not all three.
    """
    named = {"certificate": certificate, "key": key, "authority": authority}
    missing = [name for name, path in named.items() if not path]
    if len(missing) == len(named):
        return None
    if is_client_with_token and missing == ["certificate", "key"]:
        return TlsFiles(authority=authority)
    if missing:
        raise ValueError(f"TLS needs three files; missing: {', '.join(f'tls_{name}' for name in missing)}")
    return TlsFiles(**named)


def check_tls_uses(
    files: TlsFiles | None, *, mode: str, client_auth: str, others: Mapping[str, bool], hint: str
) -> None:
    """
    The options of a port with modes fit each other.

    @param others: further uses of the files, as an option and its value, and whether they are wanted.
    @param hint: what to say when nothing uses the files.
    @raise ValueError: they do not.
    """
    uses = [name for name, is_used in {f"tls_mode={mode}": mode != "disabled", **others}.items() if is_used]
    if uses and files is None:
        raise ValueError(f"{uses[0]} needs tls_certificate, tls_key and tls_authority")
    if files is not None and not uses:
        raise ValueError(f"tls_certificate is given, but nothing uses it: {hint}")
    if client_auth != "none" and mode == "disabled":
        raise ValueError("tls_client_auth=require needs tls_mode=permissive or enforcing")


def check_admin_options(*, admin_tls: bool, has_keys: bool, token_file: str, token_reads: bool) -> None:
    """
    The options of an administration fit each other.

    @param has_keys: the server has the three files.
    @raise ValueError: they do not.
    """
    if admin_tls and not has_keys:
        raise ValueError("admin_tls=true needs tls_certificate, tls_key and tls_authority")
    if token_reads and not token_file:
        raise ValueError("admin_token_reads=true needs admin_token_file: without it nobody could read a page")
