# -*- test-case-name: tests.commands.test_contexts -*-
"""
Contexts: where groups and brokers are, and which files hold the keys to them, under names, in one TOML file::

    current = "prod"

    [contexts.prod]
    peers = "n0-10.0.0.1:20911;n1-10.0.0.2:20911"
    admin = ["https://10.0.0.1:8080"]
    tls_authority = "keys/authority.pem"

An option of the command line counts before the context that C{--context} names, that before the environment,
and that before the context of C{DLEDGER_CONTEXT} or, without one, the current one. Addresses are one thing:
who names one as an option (or in the environment, if that counts more) gets none of the context, nor, unless
C{--context} names it, its tokens.

The file holds paths of secrets and no secret. A relative path counts from the directory of the file.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import click
from click.core import ParameterSource

from dledger.values.addresses import parse_address, parse_members
from dledger.values.local_paths import check_local_path

#: Options of a context that say where something is; only the administrations may be several.
PLACES = ("peers", "admin", "broker", "namesrv")
#: Those that name a file.
FILES = (
    "tls_certificate", "tls_key", "tls_authority", "token_file", "admin_authority", "admin_token_file",
    "broker_credentials",
)
KEYS = (*PLACES, "group", *FILES)
#: What is shown to the other side and would let it speak for us.
_TOKENS = ("token_file", "admin_token_file")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_META = "dledger.contexts"

#: The values of one context: text, of C{admin} a tuple of it.
Values = Mapping[str, str | tuple[str, ...]]


def contexts_path() -> Path | None:
    """
    C{DLEDGER_CONTEXTS}, else C{dledger/contexts.toml} in C{XDG_CONFIG_HOME} or C{~/.config}.

    @return: None: C{DLEDGER_CONTEXTS} is there and empty, so there are no contexts.
    @raise ValueError: it is a URL.
    """
    named = os.environ.get("DLEDGER_CONTEXTS")
    if named is not None:
        return Path(check_local_path("DLEDGER_CONTEXTS", named)) if named else None
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # as the standard says
        base = os.path.expanduser("~/.config")
    return Path(base, "dledger", "contexts.toml")


def check_name(name: str) -> str:
    """@return: the name of a context. @raise ValueError: a malformed name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of a context: write 1 to 64 letters, digits, '_' and '-'")
    return name


@attrs.frozen
class Contexts:
    """
    What the file says.

    @ivar current: the name of the one that counts when none is named; empty: none.
    @ivar by_name: values as they are written there.
    """

    current: str = ""
    by_name: Mapping[str, Values] = attrs.Factory(dict)

    def get(self, name: str, path: Path) -> Values:
        """@return: one context. @raise ValueError: there is none of this name; the text names the others."""
        if name in self.by_name:
            return self.by_name[name]
        near = difflib.get_close_matches(name, self.by_name, n=1)
        known = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.by_name) or 'none'}"
        raise ValueError(f"{path}: no context {name!r}; {known}")


def read_contexts(path: Path) -> Contexts:
    """
    The file; no file is an empty one.

    @raise ValueError: it is not sound; the text names the line and what is allowed.
    """
    try:
        return parse_contexts(path.read_text("utf-8"), str(path))
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None


def parse_contexts(text: str, where: str) -> Contexts:
    """
    @param where: the file, for the errors.
    @raise ValueError: see L{read_contexts}.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where}: not TOML: {error}") from None
    for key in document:
        if key not in ("current", "contexts"):
            raise ValueError(
                f"{where}{_line(text, '', key)}: unknown {key!r}: write current = NAME, and [contexts.NAME]"
            )
    tables = document.get("contexts", {})
    if not isinstance(tables, dict):
        raise ValueError(f"{where}{_line(text, '', 'contexts')}: write a table [contexts.NAME] for each")
    found: dict[str, Values] = {}
    for name, table in tables.items():
        at = f"{where}{_line(text, name)}"
        if not _NAME.fullmatch(name) or not isinstance(table, dict):
            raise ValueError(
                f"{at}: {name!r} is not a context: write [contexts.NAME], with letters, digits, '_' and '-'"
            )
        try:
            found[name] = {key: checked(key, value) for key, value in table.items()}
        except ValueError as error:
            wrong = next(key for key, value in table.items() if _problem(key, value))
            raise ValueError(f"{where}{_line(text, name, wrong)}: [contexts.{name}] {error}") from None
    current = document.get("current", "")
    if current not in ("", *found):
        raise ValueError(
            f"{where}{_line(text, '', 'current')}: no context {current!r}; "
            f"there are {', '.join(found) or 'none'}"
        )
    return Contexts(current, found)


def checked(key: str, value: object) -> str | tuple[str, ...]:
    """
    A value of a context.

    @return: text; of C{admin} a tuple.
    @raise ValueError: there is no such key, or the value does not fit.
    """
    if key not in KEYS:
        if "token" in key or "secret" in key or "password" in key:
            raise ValueError(f"{key}: secrets are not kept here: write the path of a file, "
                             "token_file, admin_token_file or broker_credentials")
        near = difflib.get_close_matches(key, KEYS, n=1)
        raise ValueError(f"unknown {key!r}; " + (f"did you mean {near[0]!r}?" if near else
                                                 f"there are {', '.join(KEYS)}"))
    if key == "admin":
        urls = [value] if isinstance(value, str) else value
        if not isinstance(urls, list | tuple) or not urls:
            raise ValueError("admin: write one URL, or a list of them")
        return tuple(_checked_url(url) for url in urls)
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{key}: write text in quotes that is not empty")
    if key in FILES:
        check_local_path(key, value)
    if key == "peers":
        parse_members(value)
    elif key in PLACES:
        for one in value.split(";"):
            try:
                parse_address(one.strip())
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
    return value


def _checked_url(url: object) -> str:
    parts = urlsplit(url) if isinstance(url, str) and url.isprintable() else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"admin: {url!r} is not a URL of an administration: write http://HOST:PORT or https://HOST:PORT"
        )
    if "@" in parts.netloc:
        raise ValueError("admin: a URL with a password: secrets are not kept here, see admin_token_file")
    return parts.geturl()


def _problem(key: str, value: object) -> bool:
    try:
        checked(key, value)
    except ValueError:
        return True
    return False


def _line(text: str, name: str, key: str = "") -> str:
    """C{": line N"} of a key, or of the head of its context; empty if the file is written another way."""
    number = _find(text.splitlines(), name, key)
    return "" if number is None else f": line {number + 1}"


def _find(lines: list[str], name: str, key: str = "") -> int | None:
    """
    The number of a line, from 0 on.

    @param name: the context; empty: before the first.
    @param key: empty: the head of the context.
    """
    head = re.compile(rf"\s*\[\s*contexts\s*\.\s*([\"']?){re.escape(name)}\1\s*\]")
    wanted = re.compile(rf"\s*([\"']?){re.escape(key)}\1\s*[=.]")
    is_inside = not name
    for number, line in enumerate(lines):
        if line.lstrip().startswith("["):
            if not key and head.match(line):
                return number
            is_inside = bool(name and head.match(line))
            if not name and key == "contexts" and line.lstrip(" \t[").startswith(key):
                return number
        elif is_inside and key and wanted.match(line):
            return number
    return None


def with_context(text: str, name: str, values: Values) -> str:
    """
    The file with other values of one context, which may be a new one; all else stays as it is written.

    @raise ValueError: it is written in a way in which this cannot be done.
    """
    lines = text.splitlines()
    start = _find(lines, name)
    written = [f"{key} = {_toml(values[key])}" for key in KEYS if key in values]
    if start is None:
        lines += [*([""] if lines and lines[-1].strip() else []), f"[contexts.{name}]", *written]
    else:
        old = parse_contexts(text, "the file").by_name[name]
        for key in KEYS:
            at = _find(lines, name, key)
            line = [f"{key} = {_toml(values[key])}"] if key in values else []
            if at is None:
                lines[start + 1 : start + 1] = line if key in values else []
            elif values.get(key) != old.get(key):
                lines[at : at + 1] = line
    return _sure(lines, text, name, values)


def without_context(text: str, name: str) -> str:
    """
    The file without one context; see L{with_context}. If it is the current one, none is.
    """
    lines = text.splitlines()
    start = _find(lines, name)
    if start is not None:
        end = next((n for n in range(start + 1, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
        while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1  # what is written above the next one
        is_doubled = not (start and lines[start - 1].strip()) and end < len(lines) and not lines[end].strip()
        del lines[start : end + is_doubled]
    if parse_contexts(text, "the file").current == name and (at := _find(lines, "", "current")) is not None:
        del lines[at]
    return _sure(lines, text, name, None)


def with_current(text: str, name: str) -> str:
    """The file with another current context; see L{with_context}."""
    lines = text.splitlines()
    at = _find(lines, "", "current")
    line = f"current = {_toml(name)}"
    if at is None:
        lines[:0] = [line, *([""] if lines and lines[0].strip() else [])]
    else:
        lines[at] = line
    return _sure(lines, text, name, parse_contexts(text, "the file").by_name.get(name), current=name)


def _sure(lines: list[str], before: str, name: str, values: Values | None, *, current: str = "") -> str:
    """The text of lines that say what the text before said, except for one context, and which is current."""
    old = parse_contexts(before, "the file")
    wanted = {**old.by_name, name: values or {}}
    if values is None:
        del wanted[name]
    text = "".join(line + "\n" for line in lines)
    try:
        new = parse_contexts(text, "the file")
    except ValueError:
        new = None
    if new != Contexts(current or (old.current if old.current in wanted else ""), wanted):
        raise ValueError("it is written in a way that this command does not know: edit it by hand")
    return text


def _toml(value: str | tuple[str, ...]) -> str:
    """A value as TOML, whose basic strings are those of JSON when all is printable."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return "[" + ", ".join(map(_toml, value)) + "]"


@attrs.define
class Chosen:
    """
    The context of a command line.

    @ivar values: paths are made absolute. @ivar is_named: C{--context} names it.
    @ivar problem: why there is none although one is meant; a command that needs a place says it.
    @ivar is_elsewhere: the command line, or the environment, names addresses itself.
    """

    values: Values = attrs.Factory(dict)
    is_named: bool = False
    problem: str = ""
    is_elsewhere: bool = False


def chosen_of(context: click.Context) -> Chosen:
    """The context of this command line: one that C{--context} names was checked there, see L{choose}."""
    found = context.meta.get(_META)
    if not isinstance(found, Chosen):
        found = context.meta[_META] = _chosen("")
    return found


def choose(context: click.Context, _parameter: click.Parameter, name: str) -> None:
    """Keep what C{--context} names. @raise UsageError: there is none, or the file is not sound."""
    if context.resilient_parsing:
        context.meta[_META] = Chosen()
    elif name:
        found = context.meta[_META] = _chosen(name)
        if found.problem:
            raise click.UsageError(found.problem)


def _chosen(named: str) -> Chosen:
    try:
        path = contexts_path()
        if path is None:
            return Chosen(problem="--context: DLEDGER_CONTEXTS is empty, so there are none" if named else "")
        contexts = read_contexts(path)
        name = named or os.environ.get("DLEDGER_CONTEXT") or contexts.current
        values = contexts.get(name, path) if name else {}
    except ValueError as error:
        return Chosen(problem=str(error))
    absolute = {
        key: os.path.join(path.parent.absolute(), os.path.expanduser(value))
        if key in FILES and isinstance(value, str) else value
        for key, value in values.items()
    }
    return Chosen(values=absolute, is_named=bool(named))


class FromContext(click.Option):
    """
    An option whose value may come from a context.

    @param key: of the context. @param unless: a key that, if the context has it, counts instead.
    """

    def __init__(self, *args: object, key: str, unless: str = "", **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.key = key
        self.unless = unless

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, click.Parameter]
    ) -> tuple[object, ParameterSource]:
        """As C{click.Option.consume_value}; the module docstring names the order."""
        value, source = super().consume_value(ctx, opts)
        if ctx.resilient_parsing:
            return value, source
        chosen = chosen_of(ctx)
        is_own = source is ParameterSource.COMMANDLINE or (
            source is ParameterSource.ENVIRONMENT and not chosen.is_named
        )
        if is_own:
            if self.key in PLACES:
                chosen.is_elsewhere = True
                ctx.obj = getattr(ctx.obj, "elsewhere", ctx.obj)
            return value, source
        if chosen.problem and ctx.parent is not None:
            raise click.UsageError(chosen.problem, ctx)
        is_left = chosen.is_elsewhere and (
            self.key in PLACES or (self.key in _TOKENS and not chosen.is_named)
        )
        if self.key not in chosen.values or self.unless in chosen.values or is_left:
            return value, source
        return chosen.values[self.key], ParameterSource.DEFAULT_MAP


admin_option = click.option(
    "--admin", "urls", cls=FromContext, key="admin", multiple=True, envvar="DLEDGER_ADMIN", metavar="URL",
    help="Base URL of a member's administration. [env DLEDGER_ADMIN]",
)
