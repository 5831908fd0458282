# -*- test-case-name: tests.commands.test_dashboard -*-
"""
C{dledger dashboard}: the dashboard of a whole group in a browser, without an administration of its own.

The main thread asks the members, as the other commands do; the pages are served by the reactor of another
thread, which wakes the main thread when somebody looks.
"""

from __future__ import annotations

import secrets
import threading
import time

import click
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError

from dledger.admin.dashboard.overview import Overview, group_overview, no_overview
from dledger.base.reactor import make_reactor_monotonic
from dledger.base.reactor_thread import ReactorThread, new_reactor
from dledger.cli.console.command import describe_error, say
from dledger.cli.console.contexts import admin_option
from dledger.cli.console.target import Target
from dledger.cli.ledger.member_pages import read_pages
from dledger.cli.ledger.status import gather_group
from dledger.values.errors import DLedgerError

#: Bytes of chance in the path of pages that not every user of this machine may see.
_SECRET_BYTES = 16


def look_at(target: Target, urls: tuple[str, ...]) -> Overview:
    """
    Ask all members.

    @param target, urls: as of L{gather_group}.
    @raise ClickException, DLedgerError: nobody can be asked.
    """
    group, reports = gather_group(target, urls, is_quiet=True)
    pages = read_pages(target.admin, reports, urls, with_events=True)
    return group_overview(
        reports, pages.details, pages.events, at_s=time.time(), group=group, unread=pages.unread
    )


def _tried(target: Target, urls: tuple[str, ...]) -> Overview:
    """As L{look_at}, where nobody answers, too."""
    try:
        return look_at(target, urls)
    except click.ClickException as error:
        problem = error.format_message()
    except DLedgerError as error:
        problem = describe_error(error)
    except OSError as error:
        problem = str(error)
    return no_overview(problem, at_s=time.time(), group=target.group)


@click.command()
@admin_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default="one that is free",
              help="Port on the loopback interface.")
@click.pass_context
def dashboard(context: click.Context, urls: tuple[str, ...], port: int) -> None:
    """
    Show the whole group in a browser, until Ctrl-C.

    Prints the address of the page, on the loopback interface of this machine. The members are asked while
    somebody looks, at most once a second, on their log ports and on the administrations that they report. If
    they want a token or a certificate, the address has a part that nobody can guess, as other users of this
    machine can reach the port, too.
    """
    from dledger.admin.group import Looks, group_site  # other commands start without a web server

    target = context.obj
    first = look_at(target, urls)
    wanted = threading.Event()
    reactor = new_reactor()
    make_reactor_monotonic(reactor)
    thread = ReactorThread("dledger-dashboard", reactor)
    path = secrets.token_urlsafe(_SECRET_BYTES) if target.tls is not None or target.admin.token else ""
    looks = Looks(first, reactor, wanted.set)
    site = group_site(looks.latest, reactor, path=path)
    try:
        endpoint = serverFromString(reactor, f"tcp:{port}:interface=127.0.0.1")
        try:
            listening = thread.wait(lambda: endpoint.listen(site))
        except CannotListenError as error:
            raise click.ClickException(f"--port {port}: {error.socketError}") from None
        here = getattr(listening.getHost(), "port", port)
        click.echo(f"http://127.0.0.1:{here}/" + (f"{path}/" if path else ""))
        say("Ctrl-C ends it")
        while True:
            _wait(wanted)
            wanted.clear()
            thread.run(looks.publish, _tried(target, urls))
    except KeyboardInterrupt:
        return
    finally:
        thread.stop(lambda: None)


#: How the main thread waits for somebody who looks.
_wait = threading.Event.wait
