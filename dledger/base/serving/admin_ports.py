# -*- test-case-name: tests.base.test_admin_ports -*-
"""
Where an administration may listen.

Rule 1: an endpoint without an interface is one of the loopback interface.
Rule 2: beyond the loopback interface the pages need TLS, and a token for what changes something, unless the
operator says C{insecure}. An endpoint whose interface cannot be known from its text is beyond it.
"""

from __future__ import annotations

import re

from dledger.values.addresses import is_loopback

#: An argument of an endpoint string; a backslash takes the next character as it is.
_ARGUMENT = re.compile(r"((?:\\.|[^:\\])*)(?::|$)")


def loopback_unless_reported(endpoint: str) -> str:
    """
    An endpoint string, with the loopback interface added if it names none; a bare number is a port.
    """
    if endpoint.isdecimal():
        endpoint = f"tcp:{endpoint}"
    kind = endpoint.partition(":")[0]
    if "interface=" in endpoint:
        return endpoint
    if kind in ("tcp", "ssl"):
        return f"{endpoint}:interface=127.0.0.1"
    if kind == "tcp6":
        return f"{endpoint}:interface=\\:\\:1"
    return endpoint


def is_beyond_loopback(endpoint: str) -> bool:
    """Whether other machines may reach an endpoint. @param endpoint: as for L{loopback_unless_reported}."""
    kind, *arguments = _ARGUMENT.findall(loopback_unless_reported(endpoint))
    if kind == "unix":
        return False
    if kind not in ("tcp", "tcp6", "ssl"):
        return True
    named = [one.partition("=") for one in arguments if one]
    # (Twisted also takes an interface without its name, after the port.)
    if sum(not equals for _, equals, _ in named) > 1:
        return True
    hosts = [re.sub(r"\\(.)", r"\1", value) for name, _, value in named if name == "interface"]
    return not hosts or not all(map(is_loopback, hosts))


def admin_finding(endpoint: str, *, is_secure: bool, has_token: bool, is_insecure: bool) -> str | None:
    """
    Why the pages must not listen at an endpoint, and what to do; None if they may.

    @param is_secure: the pages are by TLS. @param has_token: a file of tokens is named.
    @param is_insecure: the operator wants it without.
    """
    is_secure = is_secure or endpoint.startswith("ssl:")
    if is_insecure or (is_secure and has_token) or not is_beyond_loopback(endpoint):
        return None
    lacking = [
        *([] if is_secure else ["TLS (admin_tls=true, with tls_certificate, tls_key and tls_authority)"]),
        *([] if has_token else ["a token (admin_token_file, made by: dledger token FILE NAME)"]),
    ]
    return (
        f"--admin {endpoint!r}: other machines can reach it, and it lacks {' and '.join(lacking)}; give "
        "that, or a loopback address such as tcp:8080:interface=127.0.0.1, or say --insecure"
    )
