# -*- test-case-name: tests.node.test_merging -*-
"""
One push for the core out of many that came in one read.

A Java leader sends one entry in one push (unless told otherwise), so a follower under load finds dozens
of them in a read. Each by itself would cost a step, two writes and a commit. Entries that follow
each other are the same batch whether one frame brought them or many.

Rule 1: only APPENDs are merged, of one leader and term, each beginning where the one before ended, the
first of them at the end of the ledger. Anything else goes to the core as it came, in its order.
Rule 2: what the core answers for all is answered for each: all of them are in the file, or none is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from protocols.ledger.interfaces import Ticket
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import EntryBatch, PushEntryRequest, PushEntryResponse, Request, Response

#: Entries and bytes of records that one merged push may have; as of a batch between our own members.
COUNT_MAX = 4096
BYTES_MAX = 1024 * 1024


@attrs.frozen
class Merged:
    """
    Pushes that went to the core as one.

    @ivar parts: how each is answered, its first index, its number of entries.
    """

    parts: tuple[tuple[Ticket, int, int], ...]

    def answers(self, response: Response) -> Iterator[tuple[Ticket, Response]]:
        """What the core said of all, for each."""
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
    @param asked: what came in one read, in order.
    @param next_index: where the ledger goes on.
    @return: requests for the core, in the same order, each with its ticket or with those that it was
        merged from.
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
    """The entries of an APPEND in a remoting frame; native ones come in batches as it is."""
    if isinstance(request, PushEntryRequest) and request.type is PushType.APPEND and not ticket[1]:
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
