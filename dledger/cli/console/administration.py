# -*- test-case-name: tests.commands.test_administration -*-
"""
How commands ask administrations: C{--admin}, tokens, and the authority of their certificates.
C{dledger token} makes a token, C{dledger flush} asks members to flush, C{dledger log-level} to log more or
less.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import attrs
import click
from twisted.internet.defer import Deferred
from twisted.web.iweb import IAgent

from dledger.admin.sites.asking import admin_agent
from dledger.admin.sites.cluster import fetch_page, fetch_status
from dledger.admin.sites.reports import MemberReport, identity_of_status, report_of_status
from dledger.base.log_lines import LEVELS
from dledger.base.reactor import Reactor
from dledger.base.reactor_thread import ReactorThread
from dledger.base.serving.tokens import ClientTokenFile, TokenFile, is_token_name, new_token
from dledger.base.tls.securing import server_trust
from dledger.cli.console.command import EXIT_FAILED, replace_file, say, show_result
from dledger.cli.console.contexts import admin_option
from dledger.cli.console.failures import complain
from dledger.cli.console.local_paths import LocalPath
from dledger.cli.console.target import AdminAccess
from dledger.values.rights import ClientRole
from protocols.wire.fastjson import JsonObject

_Answer = TypeVar("_Answer")

#: Seconds to connect, and for each part of an answer.
DEADLINE_S = 2.0
#: Seconds for the answer to an action; a member answers earlier.
ACTION_S = 12.0


def ask_all(
    access: AdminAccess, asked: Mapping[str, str | None],
    story: Callable[[IAgent, str, Reactor], Coroutine[Deferred[object], object, _Answer]],
    failed: Callable[[str, Exception], None],
) -> dict[str, _Answer]:
    """
    Ask administrations at the same time.

    @param asked: URL to the name that the certificate there must have; None: its host.
    @param story: a coroutine function that asks one.
    @param failed: is informed of those without an answer.
    @return: URL to the answer of C{story}.
    """
    found: dict[str, _Answer] = {}
    if not asked:
        return found
    thread = ReactorThread("dledger-admin")
    try:
        agents = {url: _agent(access, thread.reactor, url, name) for url, name in asked.items()}

        def begun(url: str) -> Future[_Answer]:
            return thread.start(lambda: Deferred.fromCoroutine(story(agents[url], url, thread.reactor)))

        for url, answer in [(url, begun(url)) for url in asked]:
            try:
                found[url] = answer.result()
            except Exception as error:
                failed(url, error)
    finally:
        thread.stop(lambda: None)
    return found


def ask_members(
    access: AdminAccess, urls: Mapping[str, str | None], *, is_quiet: bool = False
) -> tuple[dict[str, MemberReport], dict[str, str], str]:
    """Reports by member id; addresses of all members, and the group, as the administrations report them."""
    reports: dict[str, MemberReport] = {}
    addresses: dict[str, str] = {}
    group = ""

    def failed(url: str, error: Exception) -> None:
        if not is_quiet:
            is_ours = not isinstance(error, ValueError)
            complain(f"{url}: " + ("" if is_ours else "no dledger member answered: ")
                + (str(error) or type(error).__name__))

    for url, document in ask_all(access, urls, _story, failed).items():
        try:
            member_id, its_group, its_peers = identity_of_status(document)
            report = report_of_status(member_id, its_peers[member_id], url, document)
        except ValueError as error:
            failed(url, error)
            continue
        addresses = {**its_peers, **addresses}
        group = group or its_group
        reports[member_id] = attrs.evolve(report, address=addresses[member_id])
    return reports, addresses, group


async def _story(agent: IAgent, url: str, reactor: Reactor) -> JsonObject:
    return await fetch_status(agent, url, DEADLINE_S, reactor)


def _agent(access: AdminAccess, reactor: Reactor, url: str, name: str | None) -> IAgent:
    """
    Asks one administration.

    @param name: that its certificate must have; None: the host of the URL.
    @raise ClickException: the authority's file is not sound.
    """
    try:
        trust = server_trust(access.authority) if url.startswith("https:") else None
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    return admin_agent(reactor, DEADLINE_S, trust=trust, name=name, token=access.token)


@click.command()
@click.argument("file", type=LocalPath(dir_okay=False, path_type=Path))
@click.argument("name")
@click.option("--remove", is_flag=True, help="Take all tokens of NAME out of FILE instead.")
@click.option("--replace", is_flag=True, help="Take the old tokens of NAME out of FILE at the same time.")
@click.option("--role", type=click.Choice([str(one) for one in ClientRole]), default=None,
              help="The token is one of a client of logs, and FILE the client_token_file of members.")
@click.option("--group", "groups", multiple=True, metavar="NAME",
              help="With --role: only of this group; several are allowed. [default: of every group]")
def token(
    file: Path, name: str, remove: bool, replace: bool, role: str | None, groups: tuple[str, ...]
) -> None:
    """
    Make a token for NAME, and add its hash to FILE, the admin_token_file of servers.

    The token itself is printed, once; a file that takes it is made readable for its owner alone. Running
    servers take the change within a second of the next request, members that of client_token_file within ten
    seconds. All tokens of a name count, so that holders can change over; with --replace the new one alone.
    """
    if not is_token_name(name):
        raise click.UsageError(f"{name!r} is not a name: write at most 64 letters, digits, '_', '-' and '.'")
    if groups and role is None:
        raise click.UsageError("--group needs --role: tokens of administrations have no groups")
    if remove and replace:
        raise click.UsageError("--remove makes no token, --replace makes one: give one of them")
    try:
        old = file.read_text("ascii") if file.exists() else ""
        kind = TokenFile if role is None else ClientTokenFile
        if old.strip() and not remove:
            try:
                kind(str(file))
            except ValueError as error:
                advice = "if its tokens are of the other kind, " + (
                    "give --role, too" if role is None else "leave --role out"
                )
                raise click.ClickException(f"{error}; {advice}") from None
        kept = old
        if remove or replace:
            lines = old.splitlines(keepends=True)
            others = [one for one in lines if one.split()[:1] != [name]]
            if len(others) == len(lines):
                raise click.ClickException(f"{file} has no token of {name}")
            kept = "".join(others)
            if remove and not any(one.strip() and not one.startswith("#") for one in others):
                raise click.ClickException(
                    f"{file} would have no token, and servers would keep the old one: use --replace, or make "
                    "a token of another name first"
                )
        if remove:
            replace_file(file, kept)
            say(f"{file}: {name} has no token any more")
            return
        made, line = new_token(name, None if role is None else ClientRole(role), groups)
        there = file.exists()
        replace_file(file, kept + ("\n" if kept and not kept.endswith("\n") else "") + line)
        try:
            _hide_output()
            click.echo(made)
        except OSError:
            # Nobody has seen it, and nothing else can ever show it.
            replace_file(file, old) if there else file.unlink()
            raise
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    say(f"{file}: the hash of the token of {name}, for {kind.option}; the token is not kept anywhere")


def _hide_output() -> None:
    """Make the file that takes the standard output, if it is one, readable for its owner alone."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # (It is no descriptor.)
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode) and mode & 0o077:
        os.fchmod(number, stat.S_IMODE(mode) & ~0o077)


@click.command()
@admin_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def flush(context: click.Context, urls: tuple[str, ...], as_json: bool) -> None:
    """
    Let members put on stable storage what is in their ledgers now. Needs a token.

    Each member that --admin names is asked. Exit status 1 if one has not done it.
    """
    found, failures = post_all(context.obj.admin, urls, "/flush")
    lines = [f"{url}\tflushed up to {page.get('flushed_index')}" for url, page in found.items()]
    show_result({"flushed": found, "failed": failures}, *lines, as_json=as_json)
    end_with(context, failures)


@click.command("log-level")
@click.argument("level", type=click.Choice(LEVELS))
@click.option("--room", default=None, metavar="NAME",
              help="Only lines of this module, or of those whose names begin with it: dledger.node. "
                   "[default: all that have no level of their own]")
@admin_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def log_level(
    context: click.Context, level: str, room: str | None, urls: tuple[str, ...], as_json: bool
) -> None:
    """
    Let members write their logs from LEVEL on, until they are restarted. Needs a token.

    Each member that --admin names is asked. Exit status 1 if one has not done it.
    """
    if room is not None and not room:
        raise click.UsageError("--room has no name; leave it out for all rooms")
    query = urlencode({"level": level, **({} if room is None else {"room": room})})
    found, failures = post_all(context.obj.admin, urls, f"/log-level?{query}")
    lines = [f"{url}\t{page.get('log_level')}" for url, page in found.items()]
    show_result({"changed": found, "failed": failures}, *lines, as_json=as_json)
    end_with(context, failures)


def post_all(
    access: AdminAccess, urls: tuple[str, ...], page: str
) -> tuple[dict[str, JsonObject], dict[str, str]]:
    """
    Let members do something.

    @param page: the path, with its query.
    @return: URL to the answer, and URL to the reason of each that has not done it.
    @raise UsageError: no member is named.
    """
    if not urls:
        raise click.UsageError("no member named: give --admin URL")
    failures: dict[str, str] = {}

    def failed(url: str, error: Exception) -> None:
        failures[url] = str(error) or type(error).__name__

    async def story(agent: IAgent, url: str, reactor: Reactor) -> JsonObject:
        return await fetch_page(agent, url, page, ACTION_S, reactor, "POST")

    return ask_all(access, dict.fromkeys(urls), story, failed), failures


def end_with(context: click.Context, failures: Mapping[str, str]) -> None:
    """Print the failures; exit with L{EXIT_FAILED} if there are some."""
    for url, reason in failures.items():
        complain(f"{url}: {reason}")
    if failures:
        context.exit(EXIT_FAILED)
