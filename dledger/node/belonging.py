# -*- test-case-name: tests.node.test_lineages -*-
"""Puts together what decides who belongs to the group: the greeting, the lineages, the contacts."""

from __future__ import annotations

import random
from collections.abc import Callable

from dledger.core.state.inputs import DirectoryDoubted, StoreFailed
from dledger.node.connections.greeting import Greeting, KnownMembers
from dledger.node.connections.lineages import Lineages
from dledger.node.connections.peers import Peers
from dledger.node.connections.server import MemberServer, Note
from dledger.node.work.contacts import Contacts
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import StoreError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.lineage import LINEAGE_BITS


class Belonging:
    """
    @ivar greeting: what this member shows, and how it judges others.
    @ivar contacts: the members to which it connects.
    """

    def __init__(
        self, config: DLedgerConfig, known: KnownMembers, store: FileStore, rng: random.Random,
        feed: Callable[..., None], changed: Callable[[], None], note: Note,
    ) -> None:
        """
        @param rng: makes incarnations.
        @param changed: called when the contacts have changed.
        """
        self._identity = identity = store.identity
        self._rng = rng
        self._feed = feed
        self._greet: Callable[[], None] = lambda: None
        self._lineages = Lineages(
            identity, is_blank=lambda: store.ledger_end_index < 0 and not identity.group_name.id,
            doubt=self._doubt, note=note,
        )
        self.greeting = Greeting(
            known=known, group_name=lambda: identity.group_name, lineages=self._lineages
        )
        self.contacts = Contacts(config, known, self.greeting, feed, changed)

    def vouches(self, peers: Peers, member_id: str) -> bool:
        """Whether a binding message in the name of a member may be its own."""
        is_there = peers.vouches(member_id) or self.contacts.has_moved(member_id)
        return is_there and member_id not in self._lineages.suspects

    def connect(self, peers: Peers, server: MemberServer) -> None:
        """Set the connections."""
        self._greet = peers.greet
        self.contacts.ask_with(peers.ask_again)
        peers.notify_with(self.contacts.answered)
        self._lineages.connect(end_calls=server.end_calls, recheck=peers.greet)

    def _doubt(self, reason: str, is_copy: bool) -> None:
        """Another member knows the directory otherwise: record it, inform the core, then the others."""
        try:
            self._identity.doubt(self._rng.getrandbits(LINEAGE_BITS) if is_copy else -1)
        except StoreError as error:
            self._feed(StoreFailed(reason=str(error)))
            return
        self._feed(DirectoryDoubted(reason=reason))
        self._greet()
