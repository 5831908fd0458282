# -*- test-case-name: tests.test_reference -*-
"""
The tables of docs/reference.md, printed from the code: options of each program, codes, commands, metrics.
L{tests.site} writes the whole page.

The page is written by people around the tables; C{*(table: NAME)*} is the place of one. The meaning of an
option, a code or a command is in the code; L{tests.reference_remarks} has the few words that no code needs:
which value of a metric is a sign of trouble, and where a document goes on about a command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import click
from prometheus_client.core import Metric
from twisted.python.usage import Options

from dledger.admin.broker_metrics import MEASURED_COUNTERS, BrokerCollector
from dledger.admin.metrics import make_registry
from dledger.admin.name_server import NameServerCollector
from dledger.base.disk.file_table import (
    BROKER_FILES,
    MEMBER_FILES,
    NAME_SERVER_FILES,
    RAFT_BROKER_FILES,
    FileRow,
    Worth,
)
from dledger.base.histogram import Histogram
from dledger.cli.console.command import EXIT_STATUSES, loaded
from dledger.cli.main import cli
from dledger.daemons.data.export import Options as ExportOptions
from dledger.daemons.ledger.member import Options as MemberOptions
from dledger.daemons.rocketmq.broker import Options as BrokerOptions
from dledger.daemons.rocketmq.namesrv import Options as NameServerOptions
from dledger.daemons.settings.logs import LOG_PARAMETERS
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.options.raft_options import RaftOptions
from dledger.rocketmq.broker.showing.status import BrokerMeasures, BrokerStatus, Waiting
from dledger.rocketmq.namesrv.config import NameServerConfig
from dledger.rocketmq.namesrv.status import NameServerStatus
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.option_fields import is_fixed
from protocols.wire.code_help import CODE_HELP
from tests.admin.fakes import MACHINE, picture
from tests.import_graph import ROOT
from tests.reference_remarks import COMMAND_REMARKS, METRIC_REMARKS

PAGE = ROOT / "docs" / "reference.md"
_PLACE = re.compile(r"^\*\(table: (.+)\)\*$", re.MULTILINE)

#: Fields of the classes of options that no operator gives: parts, and results.
NOT_OPTIONS = frozenset({"store", "ha", "raft", "ignored", "role"})


def _cell(text: str) -> str:
    """A text that stays whole in a table: a bar, a new line, and an angle bracket that is not code."""
    parts = text.replace("|", "\\|").replace("\n", " ").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def _row(*cells: str) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |\n"


def table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A table in Markdown, with one line for each row."""
    return _row(*heads) + "|" + "---|" * len(heads) + "\n" + "".join(_row(*row) for row in rows)


def shown_default(value: object) -> str:
    """The default of an option as operators write it; empty if it has none."""
    if value is attrs.NOTHING:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "`" + ";".join(f"{name}-{address}" for name, address in value.items()) + "`"
    if not value:
        return "none" if value == () else "empty"
    return f"`{value}`"


def markdown(text: str) -> str:
    """The text of a docstring in one line, its marks as backquotes."""
    return re.sub(r"[CLI]\{([^{}<]*?)(?: <[^{}]*>)?\}", r"`\1`", " ".join(text.split()))


def field_meanings(kind: type) -> dict[str, str]:
    """Name of a field to its text in the docstring of its class (C{@ivar a, b: text})."""
    found = {}
    for part in re.split(r"\n\s*@ivar ", kind.__doc__ or "")[1:]:
        names, _, text = part.partition(":")
        said = markdown(text.partition("\n\n")[0])
        found.update({name.strip(): said for name in names.split(",")})
    return found


def fields_table(kind: type) -> str:
    """The options that are fields of a class, explained by its docstring."""
    options = [one for one in attrs.fields(kind) if one.name not in NOT_OPTIONS and not is_fixed(one)]
    meanings = field_meanings(kind)
    silent = [one.name for one in options if len(meanings.get(one.name, "")) < 10]
    if silent:
        raise ValueError(f"the docstring of {kind.__name__} has no \"@ivar NAME: what it does\" for {silent}")
    return table(("Option", "Default", "Meaning"), (
        (f"`{one.name}`", shown_default(one.default), meanings[one.name]) for one in options
    ))


def program_options(kind: type[Options], *inherited: Sequence[object]) -> str:
    """The command line of a program that twistd runs."""
    valued = [*getattr(kind, "optParameters", ()), *inherited]
    flags = getattr(kind, "optFlags", ())

    def rows() -> Iterator[tuple[str, str]]:
        for long, short, default, text, *_ in sorted(valued, key=lambda one: str(one[0])):
            said = "" if default in (None, "") else f" [default: {default}]"
            yield f"`--{long}`" + (f", `-{short}`" if short else ""), f"{text}{said}"
        for long, short, text in sorted(flags, key=lambda one: str(one[0])):
            yield f"`--{long}`" + (f", `-{short}`" if short else ""), f"{text} (No value.)"
        for name in ("set", "option"):
            if hasattr(kind, f"opt_{name}"):
                yield f"`--{name} name=value`", str(getattr(kind, f"opt_{name}").__doc__)

    return table(("On the command line", "Meaning"), rows())


def codes() -> str:
    """The outcomes of calls."""
    return table(("Code", "Name", "Cause", "What to do"), (
        (str(int(code)), code.name, reported.cause, reported.remedy) for code, reported in CODE_HELP.items()
    ))


def statuses() -> str:
    """The exit statuses of the commands."""
    return table(("Exit status", "Meaning"), ((str(one), text) for one, text in EXIT_STATUSES.items()))


def all_commands(command: click.Command = cli, name: str = "dledger") -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name, a group before its members; of C{cli} itself only its members."""
    command = loaded(command)
    if command is not cli:
        yield name, command
    if isinstance(command, click.Group):
        for one, inner in command.commands.items():
            yield from all_commands(inner, f"{name} {one}")


def _help_of(command: click.Command) -> str:
    """The help text of a command, a paragraph a line."""
    paragraphs = re.split(r"\n\s*\n", (command.help or "").strip())
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


def _options_of(command: click.Command) -> Iterator[tuple[str, str]]:
    """Each option with its value, its help and its default. (Click's own lines differ between releases.)"""
    for one in command.params:
        if not isinstance(one, click.Option) or one.hidden:
            continue
        names = ", ".join((*one.opts, *one.secondary_opts))
        if not one.is_flag and not one.count:
            choices = one.type.choices if isinstance(one.type, click.Choice) else ()
            value = one.metavar or "|".join(map(str, choices)) or one.type.name.partition(" ")[0].upper()
            names += f" {value}"
        shown = one.show_default and one.default not in (None, "")
        yield f"`{names}`", " ".join((one.help or "").split()) + f" [default: {one.default}]" * bool(shown)


def _arguments_of(command: click.Command) -> str:
    """The names of its arguments, as help texts have them; three points after one that may be repeated."""
    return " ".join(
        (one.metavar or str(one.name).upper()) + "..." * (one.nargs != 1)
        for one in command.params if isinstance(one, click.Argument)
    )


def command_list() -> str:
    """Each command of the command line in a line, with the first sentence of its help."""
    return table(("Command", "What it does"), (
        (f"[`{name}`](#dledger-{name})", _help_of(command).partition("\n")[0])
        for name, command in cli.commands.items()
    ))


def command_details() -> str:
    """Help and options of each command, and of the command line itself."""
    parts = ["Options before the command:\n\n" + table(("Option", "Meaning"), _options_of(cli))]
    for name, command in all_commands():
        heading = "#" * (2 + len(name.split()))
        arguments = _arguments_of(command)
        said = [f"{heading} {name}\n", *([f"Arguments: `{arguments}`\n"] if arguments else []),
                _help_of(command) + "\n"]
        if COMMAND_REMARKS.get(name):
            said.append(COMMAND_REMARKS[name] + "\n")
        options = list(_options_of(command))
        if options:
            said.append(table(("Option", "Meaning"), iter(options)))
        parts.append("\n".join(said))
    return "\n".join(parts)


def families(metrics: Iterable[Metric], prefix: str) -> dict[str, tuple[str, str]]:
    """Name of each metric of ours, without its prefix, to its kind and its help."""
    last = {"counter": "_total", "info": "_info"}
    return {
        one.name.removeprefix(prefix) + last.get(one.type, ""): (one.type, one.documentation)
        for one in metrics if one.name.startswith(prefix)
    }


def member_metrics() -> dict[str, tuple[str, str]]:
    """The metrics of a member with a state machine."""
    return families(make_registry(lambda: picture(machine=MACHINE)).collect(), "dledger_")


def metrics() -> str:
    """The metrics of a member, and the values that are a sign of trouble."""
    return table(("Name", "Kind", "Meaning", "Watch for"), (
        (f"`{name}`", kind, text, METRIC_REMARKS.get(name, ""))
        for name, (kind, text) in member_metrics().items()
    ))


def blank(kind: type[Any]) -> Any:
    """A status of a class of attrs in which nothing has happened."""
    empty: dict[str, object] = {"str": "", "bool": False, "int": 0, "float": 0.0, "tuple": ()}
    return kind(**{
        one.name: empty.get(re.split(r"\W", str(getattr(one.type, "__name__", one.type)))[0], {})
        for one in attrs.fields(kind)
    })


def _blank_measures() -> BrokerMeasures:
    """The figures of a broker in which nothing has happened."""
    nothing = Histogram(bounds=(), counts=[0], total=0.0)
    measures: BrokerMeasures = attrs.evolve(
        blank(BrokerMeasures), puts=nothing, gets=nothing, waiting=blank(Waiting),
        totals=dict.fromkeys((key for _, _, key in MEASURED_COUNTERS), 0),
        rates=dict.fromkeys(("put", "found", "missed", "got"), 0.0),
        mornings=dict.fromkeys(("put", "got"), (0, 0, 0)),
    )
    return measures


class _BlankServer:
    """A name server in which nothing has happened."""

    def status(self) -> NameServerStatus:
        """All numbers are 0."""
        status: NameServerStatus = blank(NameServerStatus)
        return status

    def brokers(self) -> tuple[()]:
        """None."""
        return ()

    def requests(self) -> dict[str, int]:
        """None."""
        return {}

    def request_times(self) -> Histogram:
        """None."""
        return Histogram(bounds=(), counts=[0], total=0.0)


def _service_metrics(metrics: Iterable[Metric], prefix: str) -> str:
    return table(("Name", "Kind", "Meaning"), (
        (f"`{name}`", kind, text) for name, (kind, text) in families(metrics, prefix).items()
    ))


def worth_table() -> str:
    """What the columns of the table of files say."""
    return table(("Worth", "Meaning"), ((one.name.lower(), one.value) for one in Worth))


def file_table(**files: tuple[FileRow, ...]) -> str:
    """The files of directories. @param files: of each kind, by its name."""
    shown: dict[FileRow, list[str]] = {}
    for kind, rows in files.items():
        for row in rows:
            shown.setdefault(row, []).append(kind.replace("_", " "))
    return table(("File", "Of", "Worth", "Holds", "Lost or damaged"), (
        (f"`{row.name}`" + " (Java's)" * row.is_java, ", ".join(kinds), row.worth.name.lower(), row.holds,
         row.without + (f". Without a checksum: {row.unproved}" if row.unproved else ""))
        for row, kinds in shown.items()
    ))


#: Each printed part of the page.
PRINTED: Mapping[str, Callable[[], str]] = {
    "twistd dledger": lambda: program_options(MemberOptions, *LOG_PARAMETERS),
    "twistd dledger-broker": lambda: program_options(BrokerOptions, *LOG_PARAMETERS),
    "twistd dledger-namesrv": lambda: program_options(NameServerOptions, *LOG_PARAMETERS),
    "twistd dledger-export": lambda: program_options(ExportOptions),
    "member options": lambda: fields_table(DLedgerConfig),
    "broker options": lambda: fields_table(BrokerConfig),
    "store options": lambda: fields_table(StoreConfig),
    "replication options": lambda: fields_table(HAConfig),
    "raft options": lambda: fields_table(RaftOptions),
    "name server options": lambda: fields_table(NameServerConfig),
    "worth of files": worth_table,
    "files": lambda: file_table(
        member=MEMBER_FILES, broker=BROKER_FILES, raft_broker=RAFT_BROKER_FILES,
        name_server=NAME_SERVER_FILES,
    ),
    "codes": codes,
    "commands": command_list,
    "exit statuses": statuses,
    "command details": command_details,
    "member metrics": metrics,
    "broker metrics": lambda: _service_metrics(
        BrokerCollector(lambda: blank(BrokerStatus), _blank_measures).collect(), "dledger_broker_"
    ),
    "name server metrics": lambda: _service_metrics(
        NameServerCollector(_BlankServer()).collect(), "dledger_namesrv_"
    ),
}


def page(text: str) -> str:
    """
    The page with its tables.

    @param text: with the place of each table.
    @raise ValueError: a table is missing, unknown, or there twice.
    """
    names = _PLACE.findall(text)
    if sorted(names) != sorted(PRINTED):
        raise ValueError(
            f"docs/reference.md has the tables {sorted(names)}, the code prints {sorted(PRINTED)}: write the "
            f"missing lines, or remove those that are too many"
        )
    return _PLACE.sub(lambda found: PRINTED[found[1]](), text)
