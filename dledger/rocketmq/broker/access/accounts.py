# -*- test-case-name: tests.broker.access.test_accounts -*-
"""
Accounts of a broker, read from RocketMQ's C{plain_acl.yml}, and the permissions of each.

Stricter than Java, which takes unknown text as DENY, and ignores unknown names: both are errors here, because
a slip in such a file should not be found by the client that it shuts out, or lets in.

Source: PlainPermissionManager, PlainAccessResource, Permission (4.9.8).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from enum import IntFlag

import attrs

from dledger.rocketmq.broker.access.address_patterns import AddressPattern, address_pattern
from dledger.rocketmq.broker.access.yaml_text import read_yaml
from protocols.rocketmq.signing import KEY_LENGTH_MIN, Credentials
from protocols.wire.fastjson import shown

#: Most bytes of one file.
FILE_BYTES_MAX = 1 << 20
#: A group's permissions are those of this topic.
RETRY = "%RETRY%"

_NAMES = ("globalWhiteRemoteAddresses", "accounts")
_ACCOUNT_NAMES = ("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm",
                  "defaultGroupPerm", "topicPerms", "groupPerms")
#: Written by Java's tools, without meaning here.
_IGNORED = ("dataVersion",)


class AccessRight(IntFlag):
    """A permission for a topic or a group; DENY is none."""

    DENY = 0
    PUB = 1
    SUB = 2


_RIGHTS = {
    "DENY": AccessRight.DENY, "PUB": AccessRight.PUB, "SUB": AccessRight.SUB,
    "PUB|SUB": AccessRight.PUB | AccessRight.SUB, "SUB|PUB": AccessRight.PUB | AccessRight.SUB,
}
_BOOLEANS = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}


@attrs.frozen(kw_only=True)
class BrokerAccount:
    """
    One account.

    @ivar is_white: whether an address needs no signature of it.
    @ivar perms: of topics by name; of groups by C{%RETRY%} and their name.
    """

    access_key: str
    secret_key: str = attrs.field(repr=False)
    is_white: AddressPattern = attrs.field(repr=False)
    is_admin: bool
    default_topic: AccessRight
    default_group: AccessRight
    perms: Mapping[str, AccessRight]

    def may(self, resource: str, right: AccessRight) -> bool:
        """Whether it has a right to a topic, or to C{%RETRY%} and a group."""
        if self.may_everything:
            return True
        default = self.default_group if resource.startswith(RETRY) else self.default_topic
        return bool(self.perms.get(resource, default) & right)

    @property
    def may_everything(self) -> bool:
        """Whether it is an administrator without lists."""
        return self.is_admin and not self.perms

    def may_somewhere(self, right: AccessRight) -> bool:
        """Whether it has a right to a topic, whichever."""
        return self.may_everything or bool(self.default_topic & right) or any(
            given & right for resource, given in self.perms.items() if not resource.startswith(RETRY)
        )


@attrs.frozen
class Accounts:
    """
    All accounts, and the addresses from which everything is allowed.

    @ivar is_white: whether everything is allowed from an address.
    """

    is_white: AddressPattern
    by_key: Mapping[str, BrokerAccount]


def file_names(path: str) -> list[str]:
    """The files of C{path}: itself, or every C{*.yml} of a directory. @raise OSError: it cannot be read."""
    if not os.path.isdir(path):
        return [path]
    return sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith((".yml", ".yaml")))


def read_accounts(path: str) -> Accounts:
    """
    @param path: a file, or a directory of files.
    @raise ValueError: a file is missing or not sound; the text names file and place.
    """
    patterns: list[AddressPattern] = []
    by_key: dict[str, BrokerAccount] = {}
    for name, value in _documents(path):
        try:
            white, accounts = _document(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        patterns += white
        for account in accounts:
            if account.access_key in by_key:
                raise ValueError(f"{name}: accessKey {shown(account.access_key)} is given twice")
            by_key[account.access_key] = account
    return Accounts(lambda address: any(pattern(address) for pattern in patterns), by_key)


def read_credentials(path: str) -> Credentials:
    """
    @param path: a file like the C{tools.yml} of mqadmin: C{accessKey} and C{secretKey}.
    @raise ValueError: it is missing or not sound.
    """
    value = _read(path)
    try:
        found = _mapping(value, "the file", ("accessKey", "secretKey"))
        return Credentials(_key(found, "accessKey"), _key(found, "secretKey"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _documents(path: str) -> Iterator[tuple[str, object]]:
    """@raise ValueError: see L{read_accounts}."""
    try:
        names = file_names(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if not names:
        raise ValueError(f"{path}: no file ends in .yml there")
    for name in names:
        yield name, _read(name)


def _read(name: str) -> object:
    try:
        with open(name, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
        return read_yaml(data)
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except ImportError:
        raise ValueError("access control needs a further package: pip install 'dledger[acl]'") from None


def _document(value: object) -> tuple[list[AddressPattern], list[BrokerAccount]]:
    found = _mapping(value, "the file", (*_NAMES, *_IGNORED))
    white = [address_pattern(_text(one, "globalWhiteRemoteAddresses"))
             for one in _list(found, "globalWhiteRemoteAddresses")]
    return white, [_account(one) for one in _list(found, "accounts")]


def _account(value: object) -> BrokerAccount:
    found = _mapping(value, "an account", _ACCOUNT_NAMES)
    key = _key(found, "accessKey")
    try:
        return BrokerAccount(
            access_key=key, secret_key=_key(found, "secretKey"), perms=_perms(found),
            is_admin=_boolean(found.get("admin", "false"), "admin"),
            is_white=address_pattern(_text(found.get("whiteRemoteAddress") or "", "whiteRemoteAddress")),
            default_topic=_right(found.get("defaultTopicPerm", "DENY"), "defaultTopicPerm"),
            default_group=_right(found.get("defaultGroupPerm", "DENY"), "defaultGroupPerm"),
        )
    except ValueError as error:
        raise ValueError(f"account {shown(key)}: {error}") from None


def _mapping(value: object, what: str, names: tuple[str, ...]) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must have lines of name: value, with the names {', '.join(names)}")
    unknown = [name for name in value if name not in names]
    if unknown:
        raise ValueError(f"{what} has {shown(unknown[0])}: allowed are {', '.join(names)}")
    return value


def _list(found: Mapping[str, object], name: str) -> list[object]:
    value = found.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, each line with a dash")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: {shown(value)} is not text")
    return value


def _key(found: Mapping[str, object], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or len(value) < KEY_LENGTH_MIN:
        raise ValueError(f"{name} must have at least {KEY_LENGTH_MIN} characters")
    return value


def _boolean(value: object, name: str) -> bool:
    if not isinstance(value, str) or value not in _BOOLEANS:
        raise ValueError(f"{name}={shown(value)}: true or false is allowed")
    return _BOOLEANS[value]


def _right(value: object, name: str) -> AccessRight:
    right = _RIGHTS.get(value.replace(" ", "")) if isinstance(value, str) else None
    if right is None:
        raise ValueError(f"{name}={shown(value)}: allowed are {', '.join(_RIGHTS)}")
    return right


def _perms(found: Mapping[str, object]) -> dict[str, AccessRight]:
    perms: dict[str, AccessRight] = {}
    for name, prefix in (("topicPerms", ""), ("groupPerms", RETRY)):
        for one in _list(found, name):
            resource, right = _perm(one, name)
            if prefix + resource in perms:
                raise ValueError(f"{name}: {shown(resource)} is given twice")
            perms[prefix + resource] = right
    return perms


def _perm(value: object, name: str) -> tuple[str, AccessRight]:
    resource, equals, right = value.partition("=") if isinstance(value, str) else ("", "", "")
    if not equals or not resource.strip():
        raise ValueError(f"{name}: {shown(value)} is not name=PERM")
    return resource.strip(), _right(right.strip(), f"{name}, {resource.strip()}")
