# -*- test-case-name: tests.spark.test_member_tls -*-
"""
TLS for the blocking connections to members: the rules of L{dledger.base.tls.keys} with Python's C{ssl}, so
that a task needs no further package.

Rule 1: the member shows a certificate that one of the authorities has signed, with the member's id as a DNS
name, byte for byte; if the certificate names groups, the log's is among them. Nothing is sent before.
Rule 2: the files are read for each connection: a stream goes on with new ones when they are exchanged.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable

from dledger.spark.formats.log import ReadError
from dledger.values.rights import is_for_group
from dledger.values.tls_files import TlsFiles


class NotThatMember(Exception):
    """The other end has not proved that it is the member."""


def check_files(files: TlsFiles) -> None:
    """@raise ReadError: a file is missing on this machine, or not sound."""
    _context(files)


def shake_hands(plain: socket.socket, files: TlsFiles, member_id: str, group: str) -> ssl.SSLSocket:
    """
    Shake hands over a connection; its timeout counts for each step.

    @raise NotThatMember: the other end is not the member, or not of this group's authority.
    @raise ReadError: a file is missing on this machine, or not sound.
    @raise OSError: the other end speaks no TLS, refuses our certificate, or the connection is lost.
    """
    context = _context(files)
    try:
        secure = context.wrap_socket(plain)
    except ssl.SSLCertVerificationError as error:
        raise NotThatMember(
            f"tlsAuthority={files.authority} has not signed its certificate ({error.verify_message})"
        ) from None
    names, uris = _names(secure, "DNS"), _names(secure, "URI")
    if not is_for_group(uris, group):
        secure.close()
        raise NotThatMember(f"its certificate is not for group {group!r}")
    if member_id not in names:
        secure.close()
        shown = ", ".join(map(repr, sorted(names)[:5])) or "no member"
        raise NotThatMember(f"its certificate is for {shown}, not for {member_id!r}")
    return secure


def _names(secure: ssl.SSLSocket, kind: str) -> set[str]:
    """The names of a kind in the other end's certificate; one that cannot be read names nobody."""
    try:
        shown = secure.getpeercert() or {}
    except ValueError:
        return set()
    found: set[str] = set()
    for entry in shown.get("subjectAltName", ()):
        if len(entry) == 2 and entry[0] == kind and isinstance(entry[1], str):
            found.add(entry[1])
    return found


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the name of a machine proves nothing about a member, see rule 1
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(f"tlsAuthority={files.authority}", "a PEM file of certificates",
          lambda: context.load_verify_locations(files.authority), files.authority)
    if not files.certificate:
        return context  # a token says who this is
    _load(f"tlsCertificate={files.certificate}, tlsKey={files.key}",
          "PEM files of a certificate and of its key without a password",
          lambda: context.load_cert_chain(files.certificate, files.key, password=_no_password),
          files.certificate, files.key)
    return context


def _no_password() -> str:
    """OpenSSL would ask for one at the terminal."""
    raise ValueError("the key has a password")


def _load(what: str, expected: str, load: Callable[[], None], *paths: str) -> None:
    try:
        for path in paths:
            with open(path, "rb"):
                pass  # OpenSSL does not say which file is missing
        load()
    except OSError as error:
        missing = getattr(error, "filename", None)
        reason = f"{missing}: {error.strerror}" if missing else f"write {expected} ({error})"
        raise ReadError(f"option {what}: {reason}, on machine {os.uname().nodename}") from None
    except ValueError as error:
        raise ReadError(f"option {what}: write {expected} ({error})") from None
