# -*- test-case-name: tests.namesrv.test_commands -*-
"""
The options of a running name server: C{mqadmin updateNamesrvConfig} changes some of them, until the
next start.

Source: DefaultRequestProcessor.updateConfig, getConfig (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.namesrv.config import (
    BLACK_LIST,
    CHANGEABLE,
    LIMITS,
    NameServerConfig,
    java_spelling,
    name_server_from_mapping,
    name_server_option,
    properties_text,
)
from protocols.wire.fastjson import shown

#: Most bytes of the request.
UPDATE_BYTES_MAX = 64 * 1024


class ChangeableConfig:
    """@ivar config: the options that hold now."""

    log = Logger()

    def __init__(self, config: NameServerConfig) -> None:
        self.config = config

    def text(self) -> str:
        """All options, as lines C{name=value}."""
        return properties_text(self.config)

    def update(self, body: bytes, address: str) -> None:
        """
        Change options; all of them, or none.

        @param body: lines C{name=value}. @param address: of the administrator, for the log.
        @raise Refused: an option is unknown, has no such value, or cannot change while the server runs.
        """
        values = _lines(body)
        if not BLACK_LIST.isdisjoint(values):
            what = "in black list." if self.config.is_5 else "path"
            raise Refused(Code.NO_PERMISSION, f"Can not update config {what}")
        try:
            known = {name: value for name, value in values.items() if self._changes(name, value)}
            changed = name_server_from_mapping(known, self.config)
        except (ValueError, TypeError) as error:
            raise Refused(Code.SYSTEM_ERROR, str(error.args[0] if error.args else error)) from None
        if changed != self.config:
            self.config = changed
            self.log.info("options changed by {address}: {values}", address=address, values=shown(str(known)))

    def reread(self, wanted: NameServerConfig) -> frozenset[str]:
        """
        Take those options of the configuration, which was read again, that may change.

        @return: their names.
        """
        changes = {
            name: getattr(wanted, name) for name in (*CHANGEABLE, *LIMITS)
            if getattr(wanted, name) != getattr(self.config, name)
        }
        self.config = attrs.evolve(self.config, **changes)
        return frozenset(changes)

    def _changes(self, name: str, value: str) -> bool:
        """Whether an option is one of ours. @raise ValueError: it would change, and cannot."""
        target = name_server_option(name)
        if target is None:
            name_server_from_mapping({name: value})
            return False
        if target not in CHANGEABLE:
            after = getattr(name_server_from_mapping({name: value}), target)
            if after != getattr(self.config, target):
                raise ValueError(
                    f"{name} holds from the start on: change it there. These change while the server runs: "
                    f"{', '.join(map(java_spelling, CHANGEABLE))}"
                )
        return True


def _lines(body: bytes) -> dict[str, str]:
    """@raise Refused: no text, too long, or a line without a value."""
    if len(body) > UPDATE_BYTES_MAX:
        raise Refused(Code.SYSTEM_ERROR, f"{len(body)} bytes of options, at most {UPDATE_BYTES_MAX} are read")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(Code.SYSTEM_ERROR, "string2Properties error") from None
    found = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise Refused(Code.SYSTEM_ERROR, f"string2Properties error: {shown(line)} is not name=value")
        found[name.strip()] = value.strip()
    return found
