# -*- test-case-name: tests.machine.test_runner -*-
"""
What a program is that turns the committed entries of a log into a state, in the process of each member.

Rule 1: the state is a function of the entries alone, in their order. No time, no chance, no files of its own,
no order of a hash: otherwise the members drift apart, and nothing here notices.
Rule 2: a command that cannot be done is no error: its result says so, or L{RefusedCommand} does. Any other
exception stops the machine (L{dledger.machine.guarded}).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from dledger.client.values import Entry

#: Bytes of one result, at most: of a command, and of a query.
RESULT_BYTES_MAX = 1 << 20


class RefusedCommand(Exception):
    """
    A command that cannot be done. C{raise Refused("why")} in C{apply}, which has changed nothing for this
    entry, makes it the answer to the command, at every member alike; it may also be given as the result.
    """


class RefusedAnswer(bytes):
    """The result of a command that the machine has refused: the reason, UTF-8."""


class StateMachine(ABC):
    """
    A state, and the commands that change it. All calls but the pulls of a snapshot are in the reactor's
    thread (L{restore} is in another one, before any other call), so each must be short.

    @ivar name: of this kind of machine; a snapshot of another name is refused.
    @ivar version: of the content of its snapshots; a snapshot of a later version is refused.
    @ivar oldest_version: the oldest version of snapshots that L{restore} takes; None: only its own. Such a
        machine's C{restore(chunks, version)} has the version as a second parameter.
    @ivar newest_only: while members run different versions, those with a lower one answer no queries.
    """

    name: str = ""
    version: int = 1
    oldest_version: int | None = None
    newest_only: bool = False
    #: Whether L{apply} gets many entries though it is not a generator function.
    takes_many: bool = False

    @abstractmethod
    def apply(self, entries: Sequence[Entry]) -> Iterable[bytes]:
        """
        Change the state by committed entries, in their order.

        Entries without a body and those that name the members of the group are not passed: the indexes have
        gaps there.

        @return: one result for each entry, of at most L{RESULT_BYTES_MAX} bytes. A generator function gets
            many entries in one call, and gives the result of each before it looks at the next one; any other
            function gets one entry in each call.
        """

    @abstractmethod
    def query(self, request: bytes) -> bytes:
        """
        Answer from the state without changing it. An exception of any kind is an answer, too: it stops
        nothing.

        @return: at most L{RESULT_BYTES_MAX} bytes.
        """

    @abstractmethod
    def snapshot(self) -> Iterable[bytes]:
        """
        The present state in pieces of at most L{CHUNK_BYTES_MAX
        <dledger.storage.files.snapshot_file.CHUNK_BYTES_MAX>} bytes. They are pulled in another thread, one
        at a time, while L{apply} goes on: this call takes a view that does not change (a copy of a dictionary
        whose values do not change, say), and the pieces come from the view alone.
        """

    def digest(self) -> bytes | None:
        """
        A short hash of the present state, the same at every member with this state; members compare it at
        equal entries. None: that of the bytes of L{snapshot}, which must then be the same for the same state.
        Empty: nothing is compared.

        @return: at most 32 bytes.
        """
        return None

    @property
    @abstractmethod
    def restore(self) -> Callable[..., None]:
        """
        C{restore(chunks)}, or C{restore(chunks, version)} if it takes older versions: become the state of a
        snapshot. The machine is new, and nothing else is asked of it meanwhile.

        C{chunks}: the bytes of L{snapshot}, in the same pieces. C{version}: that of the snapshot.
        """


#: Makes a machine with the state of an empty log. It is called again for each snapshot that is tried.
MachineFactory = Callable[[], StateMachine]
