# -*- test-case-name: tests.commands.test_main -*-
"""
The command line: append to a log, read it, show its members, hand leadership over, check its files.

Data go to standard output, everything else to standard error. L{dledger.cli.console.command} lists the exit
statuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click
from click.core import ParameterSource

from dledger.cli.console.command import Commands, Later
from dledger.cli.console.contexts import FILES, FromContext, choose, chosen_of
from dledger.cli.console.local_paths import NAMED_PATH
from dledger.cli.console.numbers import RealRange
from dledger.cli.console.target import AdminAccess, Target
from dledger.values.client_token import ClientToken, read_token
from dledger.values.tls_files import tls_files

if TYPE_CHECKING:
    from protocols.rocketmq.signing import Credentials

#: Each command: its name, its place below C{dledger.cli}, and the first sentence of its help.
_COMMANDS = (
    ("append", "appending:append", "Append BODIES, or every line of files, or of standard input, in order."),
    ("get", "reading:get", "Show the entry at INDEX, or of a time."),
    ("tail", "reading:tail", "Show committed entries."),
    ("transfer", "ledger.member:transfer", "Hand leadership over to member TO."),
    ("status", "ledger.status:status", "Show the members of the group."),
    ("health", "ledger.watch:health", "Say of each member whether it serves, and why not."),
    ("doctor", "ledger.doctor:doctor",
     "Look at the group, at disks and at backups: what is wrong, what it means, and what mends it."),
    ("cluster", "ledger.watch:cluster", "Show the whole group: roles, indexes, lags, health, versions."),
    ("top", "ledger.watch:top",
     "Show the group again and again, with the entries per second that each member gets."),
    ("dashboard", "ledger.dashboard:dashboard", "Show the whole group in a browser, until Ctrl-C."),
    ("events", "ledger.watch:events",
     "Show the last events of the members: changes of roles, truncations, repairs, refusals."),
    ("bench", "ledger.bench:bench", "Append at a steady rate for some seconds, and say PASS or FAIL."),
    ("verify", "rocketmq.files:verify",
     "Check every record, checksum and index unit in a member's DIRECTORY, or in the store of a broker."),
    ("readfile", "rocketmq.files:read_file",
     "Show the headers of the records in PATH: a data file, an index file, or a directory of such files."),
    ("archive", "data.archive:archive",
     "Ship the closed segments in a member's directory MEMBER to TARGET: a directory, or a URL such "
     "as s3://bucket/log (needs 'dledger[archive]')."),
    ("backup", "data.backup:backup",
     "Copy the committed entries in a member's directory MEMBER to TARGET: a directory, or a URL "
     "such as s3://bucket/log (needs 'dledger[archive]')."),
    ("restore", "data.backup:restore",
     "Make a member's directory from TARGET, a backup or an archive, as the first member of a new group."),
    ("export", "data.export:export",
     "Write the committed entries of SOURCE into files, or a table, in OUT, each row "
     "exactly once."),
    ("ha-status", "rocketmq.ha:ha_status", "Show how far slaves have replicated their masters' logs."),
    ("ha-resolve", "rocketmq.ha_resolve:ha_resolve",
     "Show why a slave's replication has stopped, and decide how it goes on."),
    ("group", "ledger.group:group", "Begin a group, join one, or go on without a lost majority."),
    ("machine", "ledger.machine:machine",
     "Show the state machines of the members, let them write snapshots, or skip an entry."),
    ("member", "ledger.member:member", "Show and change the members of a running group."),
    ("times", "ledger.times:times", "Bring back true times to a log whose times are ahead."),
    ("state", "ledger.state:state", "Begin the state of a group anew: its table of producers and readers."),
    ("readers", "ledger.readers:readers", "Show the named readers of the group, or move or forget one."),
    ("sequence", "ledger.sequence:sequence", "Show the last sequence that the log has of PRODUCER."),
    ("local", "tools.local:local",
     "Run a whole group on this machine until Ctrl-C, for trying and for developing."),
    ("certs", "tools.certs:certs",
     "Make an authority in DIRECTORY, or use the one that is there, and certificates for a secured group."),
    ("token", "console.administration:token",
     "Make a token for NAME, and add its hash to FILE, the admin_token_file of servers."),
    ("flush", "console.administration:flush",
     "Let members put on stable storage what is in their ledgers now."),
    ("log-level", "console.administration:log_level",
     "Let members write their logs from LEVEL on, until they are restarted."),
    ("config", "tools.config:config", "Check and show options of a server, before it is started."),
    ("context", "tools.context:context_command", "Where groups and brokers are, under names in a file."),
    ("completion", "tools.assisting:completion",
     "Print what lets a shell complete commands, options and their values."),
    ("help", "tools.assisting:help_command", "Show what a command does, and its options."),
    ("version", "versions:version", "Show versions."),
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _context_option(flag: str, **facts: Any) -> Callable[[_Command], _Command]:
    return click.option(flag, cls=FromContext, key=flag[2:].replace("-", "_"), **facts)


def _path_option(flag: str, **facts: Any) -> Callable[[_Command], _Command]:
    return _context_option(flag, default="", type=NAMED_PATH, **facts)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--context", "context_name", default="", metavar="NAME", is_eager=True, expose_value=False,
              callback=choose, help="A context: see dledger context. [env DLEDGER_CONTEXT]")
@_context_option("--peers", envvar="DLEDGER_PEERS", default="", metavar="ID-HOST:PORT;...",
              help="Members of the group; some are enough. [env DLEDGER_PEERS]")
@_context_option("--group", envvar="DLEDGER_GROUP", default="default", show_default=True,
              help="Name of the group. [env DLEDGER_GROUP]")
@click.option("--timeout", type=RealRange(min=0.01), default=10.0, show_default=True,
              help="Seconds in which a call has an outcome.")
@click.option("--wire", type=click.Choice(["auto", "remoting", "binary"]), default="auto",
              show_default=True, help="Format of requests.")
@_path_option("--tls-certificate", envvar="DLEDGER_TLS_CERTIFICATE", metavar="PEM",
              help="Own certificate; with the two below, connections are TLS. [env DLEDGER_TLS_CERTIFICATE]")
@_path_option("--tls-key", envvar="DLEDGER_TLS_KEY", metavar="PEM",
              help="Its private key. [env DLEDGER_TLS_KEY]")
@_path_option("--tls-authority", envvar="DLEDGER_TLS_AUTHORITY", metavar="PEM",
              help="The authority that signed the members' certificates. [env DLEDGER_TLS_AUTHORITY]")
@_path_option("--token-file", envvar="DLEDGER_TOKEN_FILE", metavar="FILE",
              help="A token for the log, see dledger token --role; then --tls-authority is enough for TLS. "
                   "[env DLEDGER_TOKEN_FILE]")
@click.option("--insecure", is_flag=True,
              help="Show the token to other machines also without TLS: everybody on the way reads it.")
@_path_option("--admin-authority", envvar="DLEDGER_ADMIN_AUTHORITY", metavar="PEM",
              help="The authority of https administrations. [default: --tls-authority, else the system's] "
                   "[env DLEDGER_ADMIN_AUTHORITY]")
@_path_option("--admin-token-file", envvar="DLEDGER_ADMIN_TOKEN_FILE", metavar="FILE",
              help="A token for administrations, see dledger token. [env DLEDGER_ADMIN_TOKEN_FILE]")
@_path_option("--broker-credentials", envvar="DLEDGER_BROKER_CREDENTIALS", metavar="FILE",
              help="accessKey and secretKey for brokers with access control, as in RocketMQ's tools.yml. "
                   "[env DLEDGER_BROKER_CREDENTIALS]")
@click.option("--version", is_flag=True, expose_value=False, is_eager=True,
              callback=lambda context, _, is_wanted: _say_version(context, is_wanted),
              help="Show versions and exit.")
@click.pass_context
def cli(
    context: click.Context, peers: str, group: str, timeout: float, wire: str, tls_certificate: str,
    tls_key: str, tls_authority: str, token_file: str, insecure: bool, admin_authority: str,
    admin_token_file: str, broker_credentials: str,
) -> None:
    """A replicated commit log: append to it, read it, administer it."""
    chosen = chosen_of(context)
    tls = token = credentials = None
    admin = AdminAccess(authority=admin_authority or tls_authority)
    try:
        tls = tls_files(certificate=tls_certificate, key=tls_key, authority=tls_authority,
                        is_client_with_token=bool(token_file))
        token = ClientToken(read_token(token_file, "--token-file"), insecure) if token_file else None
        credentials = _credentials(broker_credentials) if broker_credentials else None
        if admin_token_file:
            admin = attrs.evolve(admin, token=read_token(admin_token_file, "--admin-token-file"))
    except ValueError as error:
        if chosen.is_named or not any(_is_of_context(context, key) for key in FILES):
            raise click.UsageError(str(error)) from None
        # Commands that need no group, such as those that mend the context, go on.
        chosen.problem = chosen.problem or f"a file of the context: {error}"
    target = Target(
        peers=peers, group=group, timeout=timeout, wire=wire, tls=tls, credentials=credentials,
        admin=admin, token=token, token_file=token_file, problem=chosen.problem,
    )
    context.obj = attrs.evolve(target, without_context=_without_context(context, target))


def _credentials(path: str) -> Credentials:
    from dledger.rocketmq.broker.access.accounts import (
        read_credentials,  # other commands start without brokers
    )
    return read_credentials(path)


def _is_of_context(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(option) is ParameterSource.DEFAULT_MAP


def _without_context(context: click.Context, target: Target) -> Target:
    """The target without the members of the context and, unless C{--context} names it, its tokens."""
    is_named = chosen_of(context).is_named

    if _is_of_context(context, "peers"):
        target = attrs.evolve(target, peers="")
    if _is_of_context(context, "token_file") and not is_named:
        target = attrs.evolve(target, token=None, token_file="")
    if _is_of_context(context, "admin_token_file") and not is_named:
        target = attrs.evolve(target, admin=attrs.evolve(target.admin, token=""))
    return target


def _say_version(context: click.Context, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        from dledger.cli.versions import versions
        click.echo(versions())
        context.exit()


for _name, _place, _help in _COMMANDS:
    cli.add_command(Later(_name, f"dledger.cli.{_place}", _help))


def main() -> None:
    """Entry point of the C{dledger} command."""
    cli.main(prog_name="dledger")
