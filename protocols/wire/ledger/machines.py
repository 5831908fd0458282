# -*- test-case-name: tests.wire.test_machine_entries -*-
"""
What a member reports of its state machine in METADATA: JSON in one text.

Members that know nothing of a field leave it out; those that know of more ignore the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from protocols.wire.errors import BodyError

#: Characters of the text, at most; of a name; and digests in it.
TOLD_MACHINE_CHARACTERS_MAX = 4096
_NAME_CHARACTERS_MAX = 255
DIGESTS_MAX = 8


@attrs.frozen(kw_only=True)
class ToldMachine:
    """
    @ivar name, version: of the machine.
    @ivar state: as of L{dledger.node.reporting.status.MachineStatus}.
    @ivar applied_index: last entry in its state; -1 for none.
    @ivar failed_index: the entry at which it failed; -1 for none.
    @ivar newest_only: while members run different versions, only those with the highest one answer queries.
    @ivar digests: index to a digest of the state after that entry, hexadecimal; of the last few.
    """

    name: str
    version: int
    state: str
    applied_index: int = -1
    failed_index: int = -1
    newest_only: bool = False
    digests: Mapping[int, str] = attrs.Factory(dict)

    @property
    def runs(self) -> bool:
        """Whether it applies entries."""
        return self.state == "running"


def encode_told_machine(told: ToldMachine) -> str:
    """As a text."""
    return json.dumps({
        "name": told.name, "version": told.version, "state": told.state, "applied": told.applied_index,
        "failedAt": told.failed_index, "newestOnly": told.newest_only,
        "digests": {str(index): digest for index, digest in sorted(told.digests.items())[-DIGESTS_MAX:]},
    }, separators=(",", ":"), sort_keys=True)


def decode_told_machine(text: str) -> ToldMachine | None:
    """
    From a text of another member; None: it is empty, the member runs no machine or an earlier version.

    @raise BodyError: it is malformed.
    """
    if not text:
        return None
    try:
        told = json.loads(text)
        digests = {int(index): str(digest)[:64] for index, digest in told.get("digests", {}).items()}
        return ToldMachine(
            name=str(told["name"])[:_NAME_CHARACTERS_MAX], version=int(told["version"]),
            state=str(told["state"])[:16], applied_index=int(told.get("applied", -1)),
            failed_index=int(told.get("failedAt", -1)), newest_only=told.get("newestOnly") is True,
            digests=dict(sorted(digests.items())[-DIGESTS_MAX:]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BodyError(f"machine: {type(error).__name__}: {error}") from None
