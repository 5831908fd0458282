# -*- test-case-name: tests.node.test_node -*-
"""The store as a node needs it."""

from __future__ import annotations

from typing import Protocol

from dledger.base.disk.set_aside import KeptFile
from dledger.base.process.group_flush import Flushable
from dledger.driver.driver import Ledger
from dledger.node.run.reads import Readable
from dledger.node.run.scrubbing import Scrubbable
from dledger.storage.files.state_file import StateEncoding, StatePlace, StoredState
from dledger.storage.start.identity import MemberIdentity
from dledger.storage.store.store_flush import LedgerFlush
from dledger.storage.store.store_room import DeletedSegment


class Store(Ledger, Flushable[LedgerFlush], Readable, Scrubbable, Protocol):
    """The store of a node."""

    @property
    def identity(self) -> MemberIdentity:
        """Whose ledger this is, and what is recorded about it."""

    @property
    def committed_index(self) -> int:
        """Last index known to be committed."""

    @property
    def repair_end_index(self) -> int:
        """-1, or the end that the ledger of a damaged member must reach again."""

    @property
    def end_position(self) -> int:
        """Stream offset in bytes of the end of the last record."""

    @property
    def disk_full(self) -> bool:
        """Whether appends are refused because the disk is full."""

    @property
    def disk_nearly_full(self) -> bool:
        """Whether they soon will be."""

    @property
    def why_group_unknown(self) -> str:
        """Why the state of the group is not known; empty if it is."""

    def encoding_group(self) -> tuple[StatePlace, StateEncoding]:
        """The last committed entry, and the state there, to be made bytes. The state is known."""

    def install_group(self, stored: StoredState) -> str:
        """Take up the state of another member. @return: why it is of no use; empty if it was taken up."""

    def void_group(self, why: str) -> None:
        """The state is wrong: it does not count any more."""

    @property
    def may_begin_group_anew(self) -> bool:
        """Whether nobody has a state if no other member gives one: Java wrote the directory."""

    def begin_group_anew(self) -> None:
        """Begin with no producer and no reader."""

    @property
    def set_aside(self) -> list[KeptFile]:
        """What this process has set aside, in order."""

    def kept_files(self) -> list[KeptFile]:
        """Everything that was ever set aside."""

    def check_point(self, *, force: bool = False) -> None:
        """Write mark and checkpoint if they changed."""

    def house_keeping(
        self, now_s: float, local_hour: int, *, keep_from_index: int, drop_to_index: int = -1
    ) -> list[DeletedSegment]:
        """Check disk space and delete expired files. @return: the deleted files."""
