# -*- test-case-name: tests.client.test_numbered_appends -*-
"""
Appends of many bodies with the program's own numbers: a producer, and the sequence of the first body.

Rule: a frame is sent when all bodies before it are stored. So the bodies without an outcome are those of one
frame, and the bodies after it are certainly not in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from dledger.base.sending.bodies import BytesLike
from dledger.client.answers.errors import AppendError, AppendFailed
from dledger.client.answers.values import Appended
from dledger.client.calls.lone_appends import Facts, LoneAppends
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.producers import producer_problem

#: Most bodies of one frame, and their bytes. A remoting frame has one body.
FRAME_COUNT_MAX = 512
FRAME_BYTES_MAX = 1 << 20


def frame_of(bodies: Sequence[bytes], first: int) -> tuple[bytes, ...]:
    """The bodies from number C{first} on that go in one frame; one at least."""
    end, size = first, 0
    while end < min(first + FRAME_COUNT_MAX, len(bodies)) and (end == first or size < FRAME_BYTES_MAX):
        size += len(bodies[end])
        end += 1
    return tuple(bodies[first:end])


async def append_numbered(
    appends: LoneAppends, given: Sequence[BytesLike], producer: str, sequence: int,
    enclose: Callable[[Sequence[BytesLike]], Sequence[bytes]],
) -> tuple[Appended, ...]:
    """
    Append bodies of a producer, each once however often this is called; see
    L{dledger.client.client.LogClient.append_many}.

    @param sequence: of the first one.
    @param enclose: checks the bodies, and puts them into their envelopes.
    @return: the runs of consecutive indexes of the bodies, in order.
    @raise AppendError: a body was not acknowledged; it also reports the acknowledged ones.
    """
    last = max(sequence + len(given) - 1, sequence)
    problem = producer_problem(producer, sequence) or producer_problem(producer, last)
    if problem:
        raise AppendFailed(ResponseCode.UNEXPECTED_ARGUMENT, failed=len(given), reason=problem)
    bodies = enclose(given) if given else ()
    clock, runs, done = appends.clock, list[Appended](), 0
    deadline_s = clock.seconds() + appends.timeout_s
    while done < len(bodies):
        frame = frame_of(bodies, done)
        left_s = max(deadline_s - clock.seconds(), 0.01)
        try:
            answer = await attrs.evolve(appends, timeout_s=left_s).append_frame(
                frame, producer, sequence + done
            )
        except AppendError as error:
            unknown = len(frame) if error.unknown else 0
            facts: Facts = {**error.facts, "acknowledged": done}
            raise type(error)(
                error.code, appended=tuple(runs), failed=len(bodies) - done - unknown, unknown=unknown,
                **facts,
            ) from None
        _add(runs, Appended(
            index=answer.index, term=answer.term, pos=answer.pos, count=answer.count, offset=done
        ))
        done += answer.count
    return tuple(runs)


def _add(runs: list[Appended], run: Appended) -> None:
    """Add a run; two that follow each other become one."""
    last = runs[-1] if runs else None
    if last is not None and (run.index, run.term) == (last.last_index + 1, last.term):
        runs[-1] = attrs.evolve(last, count=last.count + run.count)
    else:
        runs.append(run)
