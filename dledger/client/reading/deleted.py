# -*- test-case-name: tests.client.test_tail,tests.client.test_tail_losses -*-
"""
Which members have deleted the entry that a tail needs next, and which may still have it.

Rule: an entry counts as expired when each member has said so, or refuses for another reason. A member that
does not answer may have it, so it is waited for, but not for ever: it may never come back.
"""

from __future__ import annotations

import attrs

from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

#: Seconds for which a tail waits for members that do not answer, when others have deleted the entry.
ABSENT_S = 10.0

_NO_ANSWER = (ResponseCode.TIMEOUT, ResponseCode.NETWORK_ERROR)


@attrs.define
class DeletedEntries:
    """
    @ivar begins: by member, the first entry that is left of those that have deleted the needed one.
    """

    begins: dict[str, int] = attrs.Factory(dict)
    _silent: set[str] = attrs.Factory(set)

    def clear(self) -> None:
        """A member has served."""
        self.begins.clear()
        self._silent.clear()

    def left(self, member_id: str, error: Exception) -> None:
        """The tail leaves a member for this reason."""
        if isinstance(error, DLedgerError) and error.code not in _NO_ANSWER:
            self._silent.discard(member_id)
        else:
            self._silent.add(member_id)

    def check(self, index: int, waited_s: float, timeout_s: float | None) -> None:
        """
        Called when all members were asked for the entry C{index}.

        @param waited_s: since a member has served. @param timeout_s: of the tail, or None.
        @raise DLedgerError: INDEX_LESS_THAN_LOCAL_BEGIN: it has expired.
        """
        wait_s = ABSENT_S if timeout_s is None else min(ABSENT_S, timeout_s)
        if not self.begins or (self._silent and waited_s < wait_s):
            return
        first_index = min(self.begins.values())
        reason = f"entry {index} has expired; the first remaining entry is {first_index}"
        if self._silent:
            reason += f" (no answer of {', '.join(sorted(self._silent))} in {wait_s:g} s)"
        raise DLedgerError(
            ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, index=index, first_index=first_index, reason=reason
        )
