# -*- test-case-name: tests.commands.test_certs -*-
"""
C{dledger certs}: the certificates of a first secured group, in one command.

Files of one directory: C{authority.pem} and C{authority.key}; for each member, client or broker C{NAME.pem}
and C{NAME.key}. Keys can be read by their owner only. No file is overwritten: with C{--renew} the old ones
get C{.old} after their names, or C{.old2} and so on if there are older ones. Each name has a whole file at
any time, whenever the command ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from twisted.internet.abstract import isIPAddress, isIPv6Address

from dledger.cli.console.command import say
from dledger.cli.console.local_paths import LocalPath
from dledger.values.addresses import checked_members, parse_address
from dledger.values.option_values import listed
from dledger.values.rights import ClientRole

if TYPE_CHECKING:
    from dledger.base.tls.certificates import CertifiedKey

AUTHORITY = "authority"
#: Kinds of certificates besides those of clients.
_MEMBER, _BROKER = "member", "broker"
_HOST = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63}){0,30}")
#: A name of a member or a client: of a file, and of a DNS name.
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9_])?")


@click.command()
@click.argument("directory", type=LocalPath(file_okay=False, path_type=Path))
@click.option("--members", default="", metavar="N0;N1;N2",
              help="Ids of members, or the text of their --peers.")
@click.option("--client", "clients", multiple=True, metavar="NAME=ROLE",
              help="A client, and what it may do: read, append or admin. May be repeated.")
@click.option("--broker", "brokers", multiple=True, metavar="NAME[=BROKERNAME]",
              help="A broker: it may be a master, and a slave that copies a master's log, and registers as "
                   "BROKERNAME, else as NAME. May be repeated.")
@click.option("--raft-broker", default="", metavar="BROKERNAME",
              help="The members are those of a broker on a raft log, and register by this name.")
@click.option("--group", "groups", multiple=True, metavar="GROUP",
              help="Members and clients count in this group only. May be repeated. By default in each group "
                   "that believes the authority.")
@click.option("--host", "hosts", multiple=True, metavar="NAME=HOST",
              help="The certificate of NAME names this host or IP address, too: browsers, Prometheus and "
                   "dledger --admin https://HOST check it. May be repeated. Addresses in --members are "
                   "named anyhow.")
@click.option("--days", type=click.IntRange(min=1, max=3650), default=365, show_default=True,
              help="Validity of new certificates; of a new authority ten times that, at most 3650.")
@click.option("--renew", is_flag=True,
              help="Replace what is there; the old files are kept as .old, .old2 ...")
def certs(
    directory: Path, members: str, clients: tuple[str, ...], brokers: tuple[str, ...], raft_broker: str,
    groups: tuple[str, ...], hosts: tuple[str, ...], days: int, renew: bool,
) -> None:
    """Make an authority in DIRECTORY, or use the one that is there, and certificates for a secured group."""
    broker_names = _broker_names(brokers)
    wanted = _wanted(members, clients, tuple(broker_names))
    named = _hosts(hosts, members, wanted)
    if not wanted:
        raise click.UsageError("nothing to make: give --members 'n0;n1;n2', --client NAME=ROLE, or "
                               "--broker NAME")
    taken = [name for name in wanted if any(map(os.path.lexists, _paths(directory, name)))]
    if taken and not renew:
        raise click.ClickException(
            f"{directory} has files of {', '.join(taken)} already: --renew replaces them"
        )
    try:
        from dledger.base.tls.certificates import issue, lost_names
    except ImportError as error:
        needed = f"certs needs further packages ({error}): pip install 'dledger[tls]'"
        raise click.ClickException(needed) from None
    try:
        os.makedirs(directory, mode=0o750, exist_ok=True)
        authority = _authority(directory, days)
        made: dict[str, CertifiedKey] = {}
        for name, given in wanted.items():
            registers = raft_broker if given == _MEMBER else broker_names.get(name, "")
            try:
                made[name] = issue(
                    authority, name, members=(name,) if given == _MEMBER else (), is_broker=given == _BROKER,
                    roles=(given,) if isinstance(given, ClientRole) else (), days=days, hosts=named[name],
                    brokers=(registers,) if registers else (), groups=() if given == _BROKER else groups,
                )
            except ValueError as error:
                raise click.ClickException(f"{directory / AUTHORITY}.pem: {error}") from None
            _, there = _paths(directory, name)
            lost = lost_names(there.read_bytes(), made[name].certificate) if there.exists() else []
            if lost:
                raise click.ClickException(
                    f"{there} has {', '.join(lost)}, and a new one would not: give the options of before, "
                    "such as --group, --raft-broker and --host, or move it away with its key"
                )
        for name, given in wanted.items():
            _keep(directory, name, made[name])
            kind = f"client, may {given}" if isinstance(given, ClientRole) else f"{given} {name}"
            say(f"{directory / name}.pem: {kind}")
    except OSError as error:
        raise click.ClickException(f"{error.filename or directory}: {error.strerror}") from None
    say(f"keep {directory / AUTHORITY}.key off the members: its holder can make further ones")


def _wanted(members: str, clients: tuple[str, ...], brokers: tuple[str, ...]) -> dict[str, str]:
    """Name to the role of a client, L{_MEMBER} or L{_BROKER}."""
    wanted: dict[str, str] = dict.fromkeys(_member_ids(members), _MEMBER)
    for option, text, (name, kind) in (
        *(("--client", text, _client(text)) for text in clients),
        *(("--broker", text, (text, _BROKER)) for text in brokers),
    ):
        _check_name(option, name)
        if name in wanted:
            raise click.UsageError(f"{option} {text}: {name!r} is named twice")
        wanted[name] = kind
    return wanted


def _broker_names(texts: tuple[str, ...]) -> dict[str, str]:
    """Name of the files to the name of the broker."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, broker_name = text.partition("=")
        if name in found:
            raise click.UsageError(f"--broker {text}: {name!r} is named twice")
        found[name] = broker_name or name
    return found


def _member_ids(text: str) -> list[str]:
    if not text:
        return []
    try:
        ids = list(checked_members(text)) if ":" in text else list(listed(text.replace(",", ";")))
    except ValueError as error:
        raise click.UsageError(f"--members: {error}") from None
    for name in ids:
        _check_name("--members", name)
    return ids


def _hosts(
    texts: tuple[str, ...], members: str, wanted: Mapping[str, str]
) -> dict[str, list[str]]:
    """The hosts of each name: those that are given, and the IP addresses in the text of the members."""
    found: dict[str, list[str]] = {name: [] for name in wanted}
    if ":" in members:
        for name, address in checked_members(members).items():
            host = parse_address(address).host
            found[name] += [host] if isIPAddress(host) or isIPv6Address(host) else []
    for text in texts:
        name, _, host = text.partition("=")
        if name not in found:
            raise click.UsageError(f"--host {text!r}: write NAME=HOST, with a NAME of another option")
        is_address = isIPAddress(host) or isIPv6Address(host)
        if not (is_address or _HOST.fullmatch(host)) or host in wanted:
            # (As a DNS name the id of a member would let its holder speak for that member.)
            raise click.UsageError(f"--host {text!r}: write a host name or an IP address, no id of a member")
        found[name].append(host)
    return found


def _client(text: str) -> tuple[str, ClientRole]:
    name, equals, role = text.partition("=")
    if not equals or role not in ClientRole.__members__.values():
        raise click.UsageError(f"--client {text!r}: write NAME=ROLE, with the role read, append or admin")
    return name, ClientRole(role)


def _check_name(option: str, name: str) -> None:
    if not _NAME.fullmatch(name) or name == AUTHORITY:
        raise click.UsageError(
            f"{option}: {name!r} cannot be the name of a certificate: write at most 63 letters, digits, '_', "
            f"'-' and '.', and not {AUTHORITY!r}"
        )


def _authority(directory: Path, days: int) -> CertifiedKey:
    from dledger.base.tls.certificates import CertifiedKey, make_authority

    key, certificate = _paths(directory, AUTHORITY)
    if certificate.exists() != key.exists():
        there, lacking = (certificate, key) if certificate.exists() else (key, certificate)
        raise click.ClickException(
            f"{there} is there, {lacking} is not: bring it back, or use another directory"
        )
    if certificate.exists():
        return CertifiedKey(certificate=certificate.read_bytes(), key=key.read_bytes())
    made = make_authority("dledger authority", days=min(10 * days, 3650))
    _keep(directory, AUTHORITY, made)
    say(f"{certificate}: a new authority, which every member and client must believe")
    return made


def _paths(directory: Path, name: str) -> tuple[Path, Path]:
    """Key and certificate of C{name}."""
    return directory / f"{name}.key", directory / f"{name}.pem"


def _keep(directory: Path, name: str, made: CertifiedKey) -> None:
    """@raise OSError: the files that were there still are."""
    wanted = list(zip(_paths(directory, name), (made.key, made.certificate), (0o600, 0o644), strict=True))
    try:
        for path, content, mode in wanted:
            _write_new(_new(path), content, mode)
        older = _free_suffix([path for path, _, _ in wanted])
        for path, _, _ in wanted:
            with contextlib.suppress(FileNotFoundError):
                os.link(path, f"{path}{older}", follow_symlinks=False)
        for path, _, _ in wanted:
            os.replace(_new(path), path)
        _sync(directory)
    finally:
        for path, _, _ in wanted:
            _new(path).unlink(missing_ok=True)


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)  # of a run that was killed; its mode may be another one
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _free_suffix(paths: list[Path]) -> str:
    """The same for a key and its certificate."""
    suffixes = (".old" if number == 1 else f".old{number}" for number in itertools.count(1))
    return next(
        one for one in suffixes if not any(os.path.lexists(f"{path}{one}") for path in paths)
    )


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
