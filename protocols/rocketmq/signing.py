# -*- test-case-name: tests.protocols.test_signing -*-
"""
Signatures of RocketMQ's requests: HMAC-SHA1 of the values of all fields, and of the body.

A signature has neither time nor nonce: a request that was heard on the network can be sent again. Only TLS
prevents that.

Source: AclClientRPCHook, AclUtils, AclSigner (4.9.8); rocketmq-dledger-mode 6.4.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

import attrs

from protocols.wire.remoting import RemotingCommand

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
#: 4.9.8's client signs this field, and its broker does not.
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
#: Java refuses shorter keys.
KEY_LENGTH_MIN = 7


@attrs.frozen
class Credentials:
    """
    A name and its secret.

    @raise ValueError: one of them is shorter than L{KEY_LENGTH_MIN} characters.
    """

    access_key: str
    secret_key: str = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        for name, value in (("access_key", self.access_key), ("secret_key", self.secret_key)):
            if len(value) < KEY_LENGTH_MIN:
                raise ValueError(f"{name} has {len(value)} characters: at least {KEY_LENGTH_MIN} are needed")


def _signature(secret_key: str, fields: Mapping[str, str], body: bytes) -> str:
    # Java orders strings by their UTF-16 units.
    names = sorted(fields, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    content = "".join([fields[name] for name in names]).encode("utf-8", "replace") + body
    made = hmac.new(secret_key.encode("utf-8"), content, hashlib.sha1).digest()
    return base64.b64encode(made).decode("ascii")


def signed(command: RemotingCommand, credentials: Credentials) -> RemotingCommand:
    """The request with the fields that prove its sender's account."""
    fields = {**command.ext_fields, ACCESS_KEY: credentials.access_key}
    fields.pop(SIGNATURE, None)
    made = _signature(credentials.secret_key, fields, command.body)
    return attrs.evolve(command, ext_fields={**fields, SIGNATURE: made})


def is_signed(command: RemotingCommand, secret_key: str) -> bool:
    """Whether the signature of a request was made with this secret."""
    fields = dict(command.ext_fields)
    given = fields.pop(SIGNATURE, "").encode("utf-8", "replace")
    if hmac.compare_digest(_signature(secret_key, fields, command.body).encode("ascii"), given):
        return True
    if fields.pop(UNIQUE_KEY_QUERY, None) is None:
        return False
    return hmac.compare_digest(_signature(secret_key, fields, command.body).encode("ascii"), given)
