# -*- test-case-name: tests.node.test_merging -*-
"""
Merges the pushes that arrive in one read into one push for the core.

By default a Java leader sends one entry per push, so a follower under load receives dozens of pushes in
one read. Handled one by one, each would cost a step, two writes and a commit. Consecutive entries form
the same batch whether they came in one frame or in many.

Rule 1: only APPENDs of one leader and term are merged, each beginning where the previous one ended, the
first of them at the end of the ledger. All other requests go to the core unchanged, in order.
Rule 2: the core's answer goes to every merged push: either all their entries are in the file, or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from protocols.ledger.interfaces import Ticket
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import PushEntryRequest, PushEntryResponse, Request, Response

#: At most this many pushes, and bytes of records, in one merged push.
COUNT_MAX = 4096
BYTES_MAX = 1024 * 1024


@attrs.frozen
class Merged:
    """
    Pushes that went to the core as one.

    @ivar parts: of each push, its ticket, first index and number of entries.
    """

    parts: tuple[tuple[Ticket, int, int], ...]

    def answers(self, response: Response) -> Iterator[tuple[Ticket, Response]]:
        """The core's answer, as one answer for each push."""
        assert isinstance(response, PushEntryResponse)
        for ticket, first_index, count in self.parts:
            yield ticket, PushEntryResponse(
                group=response.group, code=response.code, term=response.term, index=first_index, count=count,
                begin_index=response.begin_index, end_index=response.end_index,
                wire_version=response.wire_version,
            )


def merge(
    asked: Sequence[tuple[Ticket, Request]], next_index: int
) -> Iterator[tuple[Ticket | Merged, Request]]:
    """
    Merge the pushes of one read.

    @param asked: the requests of one read, in order.
    @param next_index: the next index of the ledger.
    @return: requests for the core, in the same order, each with its ticket or with the pushes that
        it was merged from.
    """
    run: list[tuple[Ticket, PushEntryRequest, EntryBatch]] = []
    size = 0
    for ticket, request in asked:
        entries = _mergeable(ticket, request)
        if run and (
            entries is None or len(run) >= COUNT_MAX or size + len(entries.records) > BYTES_MAX
            or not _continues(run[-1][1], run[-1][2], request, entries)
        ):
            next_index = run[-1][2].last_index + 1
            yield _merged(run)
            run, size = [], 0
        if entries is not None and (run or entries.first_index == next_index):
            assert isinstance(request, PushEntryRequest)
            run.append((ticket, request, entries))
            size += len(entries.records)
        else:
            yield ticket, request
    if run:
        yield _merged(run)


def _mergeable(ticket: Ticket, request: Request) -> EntryBatch | None:
    """The entries of an APPEND in a remoting frame, else None; native pushes are batches already."""
    if isinstance(request, PushEntryRequest) and request.type is PushType.APPEND and not ticket.is_native:
        return request.entries
    return None


def _continues(
    before: PushEntryRequest, entries_before: EntryBatch, request: Request, entries: EntryBatch
) -> bool:
    return (
        entries.first_index == entries_before.last_index + 1
        and entries.term >= entries_before.term
        and request.term == before.term
        and request.leader_id == before.leader_id
        and request.local_id == before.local_id
        and request.wire_version == before.wire_version
    )


def _merged(
    run: list[tuple[Ticket, PushEntryRequest, EntryBatch]]
) -> tuple[Ticket | Merged, Request]:
    if len(run) == 1:
        return run[0][0], run[0][1]
    _, last, last_entries = run[-1]
    first_index = run[0][2].first_index
    entries = EntryBatch(
        first_index=first_index, count=last_entries.last_index + 1 - first_index, term=last_entries.term,
        records=b"".join([entries.records for _, _, entries in run]),
    )
    parts = tuple([(ticket, entries.first_index, entries.count) for ticket, _, entries in run])
    request = attrs.evolve(
        last, entries=entries, is_batch=True, commit_index=max(push.commit_index for _, push, _ in run)
    )
    return Merged(parts), request
