# -*- test-case-name: tests.core.test_replica -*-
"""The state that a member brings along from its last run."""

from __future__ import annotations

import attrs

from dledger.values.ledger.group_name import GroupName


@attrs.frozen(kw_only=True)
class RecoveredState:
    """
    What a member has kept of its state, besides its ledger. Defaults: of one that is new.

    @ivar term, voted_for: as they were saved last.
    @ivar committed_index: a lower bound.
    @ivar repair_end_index, is_unsure, group_name: see L{MemberState}.
    @ivar forgot_terms: with its directory it may have lost terms.
    """

    term: int = 0
    voted_for: str | None = None
    committed_index: int = -1
    repair_end_index: int = -1
    is_unsure: bool = False
    forgot_terms: bool = False
    group_name: GroupName = GroupName()
