# -*- test-case-name: tests.broker.admin.test_topic_attributes -*-
"""
Attributes of topics, as in 5.x: an administrator adds, changes or removes them with C{+name=value,-name}::

    message.type     the type of its messages; RocketMQ's proxy passes it to clients and checks their sends
    queue.type       C{SimpleCQ}: one unit of the consume queue for each message
    cleanup.policy   C{DELETE}: old messages go with their file of the log

Rule 1: a value that this broker would not act on is refused by name.
Rule 2: C{message.type=MIXED} needs the broker's option C{enableMixedMessageType}.

The broker stores any message in a topic of any type; so does RocketMQ's.

Source: AttributeParser, AttributeUtil, TopicAttributes, AdminBrokerProcessor.updateAndCreateTopic (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.rocketmq.answering.refusals import Code, Refused
from protocols.wire.fastjson import shown

#: As a field of a topic's entry.
ATTRIBUTES = "attributes"
MESSAGE_TYPE = "message.type"
MIXED = "MIXED"
MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED)

#: The values of each attribute that this broker acts on.
_VALUES: Mapping[str, tuple[str, ...]] = {
    MESSAGE_TYPE: MESSAGE_TYPES, "queue.type": ("SimpleCQ",), "cleanup.policy": ("DELETE",),
}
#: Those that an administrator may change later.
_CHANGEABLE = frozenset({MESSAGE_TYPE})
#: Attributes and values of RocketMQ that are refused, and the reason.
_WITHOUT: Mapping[tuple[str, str], str] = {
    ("queue.type", "BatchCQ"): "this broker has no consume queues of batches (BatchCQ)",
    ("cleanup.policy", "COMPACTION"): "this broker compacts no topics",
}
_NO_RESERVE_TIME = "reserve.time: messages go with their file of the log, fileReservedTime is for all topics"

#: Bytes of an administrator's text.
TEXT_MAX = 1024


def read_changes(text: str) -> dict[str, str]:
    """
    Names with their sign, and the values; an empty one for a name to remove.

    @raise Refused: the text is malformed.
    """
    changes: dict[str, str] = {}
    if len(text) > TEXT_MAX:
        raise _refused(f"attributes have {len(text)} characters, {TEXT_MAX} are allowed")
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if name[:1] != ("+" if equals else "-") or not name[1:] or "+" in name[1:] or "-" in name[1:]:
            raise _refused(f"attributes={shown(text)}: write +name=value,-name")
        if name[1:] in {known[1:] for known in changes}:
            raise _refused(f"attributes={shown(text)}: {name[1:]} is there twice")
        changes[name] = value
    return changes


def altered(
    before: Mapping[str, str] | None, changes: Mapping[str, str], *, allows_mixed: bool
) -> dict[str, str]:
    """
    The attributes of a topic after a change.

    @param before: those that it has; None: it is new.
    @param changes: as of L{read_changes}.
    @raise Refused: the change is not possible.
    """
    found = dict(before or {})
    for signed, value in changes.items():
        name = signed[1:]
        if name == "reserve.time":
            raise _refused(_NO_RESERVE_TIME)
        if name not in _VALUES:
            raise _refused(f"unsupported key: {shown(name)}")
        if signed[0] == "-":
            if name not in found:
                raise _refused(f"attempt to delete a nonexistent key: {name}")
            if name not in _CHANGEABLE:
                raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
            del found[name]
            continue
        if (name, value) in _WITHOUT:
            raise _refused(f"{name}={value}: {_WITHOUT[name, value]}")
        if value not in _VALUES[name]:
            raise _refused(f"{name}={shown(value)}: write one of {', '.join(_VALUES[name])}")
        if value == MIXED and not allows_mixed:
            raise Refused(Code.INVALID_PARAMETER, "MIXED message type is not supported: the broker has "
                                                  "enableMixedMessageType=false")
        if before is not None and name not in _CHANGEABLE and found.get(name, _VALUES[name][0]) != value:
            raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
        found[name] = value
    return found


def read_attributes(rest: Mapping[str, object]) -> dict[str, str]:
    """The attributes in the entry of a topic. @param rest: the fields of the entry that we do not know."""
    found = rest.get(ATTRIBUTES)
    if not isinstance(found, Mapping):
        return {}
    return {name: value for name, value in found.items() if isinstance(name, str) and isinstance(value, str)}


def _refused(remark: str) -> Refused:
    return Refused(Code.SYSTEM_ERROR, remark)
