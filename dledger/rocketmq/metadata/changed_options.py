# -*- test-case-name: tests.broker.metadata.test_changed_options -*-
"""
The options of a broker that were changed while it ran, with what its configuration had then.

They are in a file of their own, C{changedOptions.json}, because the configuration is its owner's. RocketMQ
writes its configuration file again instead.
"""

from __future__ import annotations

import json
from typing import ClassVar

import attrs

from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import shown

OptionValue = str | int | float | bool


@attrs.frozen
class ChangedOption:
    """
    @ivar value: value since the change.
    @ivar configured: value in the configuration when it was changed.
    """

    value: OptionValue
    configured: OptionValue


class ChangedOptions:
    """
    See L{dledger.rocketmq.metadata.tables.FileTable}.

    @ivar entries: by our names of the options.
    """

    file_name: ClassVar[str] = "changedOptions.json"

    def __init__(self) -> None:
        self.entries: dict[str, ChangedOption] = {}
        self.is_dirty = False

    def put(self, name: str, value: OptionValue, before: OptionValue) -> None:
        """
        Note a change.

        @param before: the value before it. A value that is back to the configured one is forgotten.
        """
        known = self.entries.pop(name, None)
        configured = before if known is None else known.configured
        if value != configured:
            self.entries[name] = ChangedOption(value, configured)
        self.is_dirty = True

    def forget(self, name: str) -> None:
        """The configuration counts again."""
        del self.entries[name]
        self.is_dirty = True

    def file_bytes(self) -> bytes:
        """Content of its file."""
        table = {name: attrs.asdict(one) for name, one in sorted(self.entries.items())}
        return json.dumps({"options": table}, indent=1).encode()

    def load(self, data: bytes) -> None:
        """Replace the content by that of a file. @raise BodyError: it is malformed; nothing has changed."""
        try:
            table = to_object(json.loads(data), "the file").get("options")
        except ValueError as error:
            raise BodyError(f"no JSON: {error}") from error
        found = {}
        for name, value in to_object(table, "options").items():
            document = to_object(value, name)
            found[name] = ChangedOption(
                _option_value(document.get("value"), name), _option_value(document.get("configured"), name)
            )
        self.entries = found
        self.is_dirty = False


def _option_value(value: object, name: str) -> OptionValue:
    if isinstance(value, (str, int, float)):
        return value
    raise BodyError(f"{name}: {shown(value)} is not a text, number or truth value")
