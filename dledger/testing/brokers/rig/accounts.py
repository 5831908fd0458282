# -*- test-case-name: tests.sim.test_pairs -*-
"""
What the clients of a schedule have sent, got and acknowledged, and which promises of a broker that breaks.

B1. A group gets only messages that were sent, in their topic, with their body, and that its filter lets
through.
B2. A delayed message is not given before its time.
B3. A transaction ends once: it is not committed and rolled back. A half message is given only if its commit
was asked for, and never after it was rolled back.
B4. A topic that was deleted and made again shows no message of before.
B5. A message that a group popped is not given to it again while it is invisible, nor after its
acknowledgement was answered.
B6. In the end each group has every acknowledged message that its filter lets through, and each popped message
was acknowledged.
B15. A message that was sent back with success is given to its group again.
B16. A message whose recall was answered with success is not given.
B28. A commit counts nothing if its connection has read the queue before its topic was deleted.

Limits: a message whose loss the role allows is marked C{may_be_lost}. What was sent before a promotion is not
judged by B5: the next master may know nothing of the pop.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dledger.rocketmq.broker.producing.halves import END_KIND, HALF_TOPIC, OP_TOPIC
from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX, REVIVE_PREFIX
from protocols.wire.rocketmq.message import Message

PLAIN, DELAYED, HALF = "plain", "delayed", "half"
ACKED, UNKNOWN, REFUSED = "acked", "unknown", "refused"
COMMIT, ROLLBACK = "commit", "rollback"
#: In an op message of a transaction that was rolled back.
ROLLED_BACK = "12"
#: Of a recall.
ASKED, DONE = "asked", "done"
#: Before the name of a group: the topic of its retries.
RETRY_PREFIX = "%RETRY%"
#: The era of a topic that may be the one of before or the next one.
UNSURE = -1


class PairBroken(AssertionError):
    """A promise was broken. The message begins with its number."""


def require_pair(condition: bool, number: int, sentence: str) -> None:
    """@raise PairBroken: C{condition} is false."""
    if not condition:
        raise PairBroken(f"B{number}: {sentence}")


@attrs.define(eq=False, kw_only=True)
class ProducedMessage:
    """
    A message that a producer has sent.

    @ivar due_ms: it may be given from now on, ms since 1970.
    @ivar kind: plain, delayed or half.
    @ivar era: of its topic when it was sent; see L{TrafficRecord.eras}.
    @ivar life: number of promotions until it was sent: the next master may have it twice, in its queue and as
        a retry.
    @ivar outcome: acked, unknown or refused; empty while it is on its way.
    @ivar offset: in the log of the broker that has answered, of the message or its first form; -1: unknown.
    @ivar queue_offset: the place in the queue that was answered, of the same.
    @ivar losses: see L{TrafficRecord.losses}, when it was sent.
    @ivar is_safe: the answer promises that the disk has it, where disks are waited for.
    @ivar is_replicated: the answer promises that it is at a slave, too.
    @ivar may_be_lost: the log that has it was given up, and its role allows that.
    @ivar asked: the ends of its transaction that were asked for.
    @ivar recall: of a message with a time: asked, or done; empty: none.
    @ivar ended: the end that was answered with success; empty: none.
    @ivar is_stored_again: it may be in its queue twice: it was sent, or delivered, around a crash.
    """

    key: str
    topic: str
    queue_id: int
    tag: str
    number: int
    body: bytes
    due_ms: int
    kind: str
    era: int
    life: int = 0
    outcome: str = ""
    offset: int = -1
    queue_offset: int = -1
    losses: int = 0
    is_safe: bool = False
    is_replicated: bool = False
    may_be_lost: bool = False
    asked: set[str] = attrs.Factory(set)
    recall: str = ""
    ended: str = ""


@attrs.frozen
class GroupFilter:
    """
    A group of consumers that pull.

    @ivar expression, kind: its filter, as a broker reads it.
    @ivar tags: the tags that pass; empty: all. @ivar above: the number of a message is above it.
    """

    name: str
    expression: str = "*"
    kind: str = "TAG"
    tags: frozenset[str] = frozenset()
    above: int = -1

    def passes(self, sent: ProducedMessage) -> bool:
        """Whether the group wants a message."""
        return (not self.tags or sent.tag in self.tags) and sent.number > self.above


@attrs.define(eq=False)
class Given:
    """
    A message that a consumer has popped.

    @ivar visible_ms: from then on the group may get it again, ms since 1970.
    @ivar acked: its acknowledgement: acked, or unknown; empty: none.
    @ivar was_acked: an earlier one of the same message was acknowledged, or may have been.
    @ivar copies: of each copy that was given, how often it had come again, and its place in its queue.
    @ivar has_twins: two copies of one pop were met, which may be given at once.
    """

    pop_ms: int
    visible_ms: int
    copies: frozenset[tuple[int, int]] = frozenset()
    has_twins: bool = False
    acked: str = ""
    was_acked: bool = False


class TrafficRecord:
    """
    @ivar sent: by key.
    @ivar eras: topic to the number of its life; L{UNSURE} while it is deleted or made.
    @ivar got: group to the keys that it has got.
    @ivar given: group and key to what its consumers have popped last.
    @ivar sent_back: group and key of a message that was sent back with success, and did not come again yet.
    @ivar life: number of promotions so far.
    @ivar lives: number of lives of topics that were begun.
    @ivar losses: how often a master has lost bytes in a loss of power: its disk was slow, and no answer
        promised them.
    @ivar deliveries, again: number of messages that groups got, and of those that they had before.
    @ivar returned: number of those that came as retries.
    @ivar late: number of commits of a deleted topic that were judged.
    """

    def __init__(self) -> None:
        self.sent: dict[str, ProducedMessage] = {}
        self.eras: dict[str, int] = {}
        self.got: dict[str, set[str]] = {}
        self.given: dict[tuple[str, str], Given] = {}
        self.sent_back: dict[tuple[str, str], None] = {}
        self.life = self.lives = self.losses = 0
        self.deliveries = self.again = self.returned = self.late = 0
        self._begin = 0

    def era(self, topic: str) -> int:
        """See C{eras}."""
        return self.eras.get(topic, 0)

    def answered(self, sent: ProducedMessage, outcome: str) -> None:
        """A send has an outcome."""
        sent.outcome = outcome
        if sent.era != self.era(sent.topic) or outcome == UNKNOWN:
            sent.era = UNSURE  # the topic was deleted, or made, meanwhile; or the request may come later

    def ended(self, sent: ProducedMessage, end: str) -> None:
        """An end was answered with success."""
        require_pair(sent.ended in ("", end), 3, f"{sent.key} is {sent.ended} and {end}")
        sent.ended = end

    def begins_at(self, offset: int) -> None:
        """A broker's log begins there: a full disk has lost its oldest files, and what nobody has got yet."""
        if offset > self._begin:
            self._begin = offset
            for sent in self.sent.values():
                sent.may_be_lost = sent.may_be_lost or 0 <= sent.offset < offset
            self.sent_back.clear()

    def doubt(self) -> None:
        """The master has lost bytes, or is another one: messages that did not wait may be gone."""
        self.sent_back.clear()
        for sent in self.sent.values():
            sent.recall = sent.recall and ASKED

    def keep_ends(self, records: list[Message]) -> None:
        """
        The next master has these records: ends of transactions that are not among them may be lost, since
        no answer to an end waits for a slave.
        """
        stored = {(key, record.topic) for record in records for key in record.keys}
        over: set[int] = set()
        places: dict[str, set[int]] = {}
        for record in records:
            if record.topic == OP_TOPIC and record.properties.get(END_KIND) == ROLLED_BACK:
                over.update(int(one) for one in record.body.split(b",") if one)
            elif record.topic == HALF_TOPIC:
                places.setdefault(record.keys[0], set()).add(record.queue_offset)
        for sent in self.sent.values():
            is_kept = (sent.key, sent.topic) in stored
            if sent.ended == ROLLBACK:
                is_kept = not over.isdisjoint(places.get(sent.key, ()))
            if not is_kept:
                sent.ended = ""

    def lost_from(self, end: int, name: str) -> None:
        """
        A loss of power has taken a master's log from C{end} on. What was not answered with success may be
        gone; so may acknowledgements and ends of transactions, whose answers promise nothing. B12.
        """
        self.losses += 1
        self.doubt()
        for sent in self.sent.values():
            if sent.offset >= end and not sent.may_be_lost:
                require_pair(not sent.is_safe, 12, f"{sent.key} was acknowledged at {sent.offset}, and "
                                                   f"{name}, which has lost power, ends at {end}")
            sent.may_be_lost = sent.may_be_lost or not sent.outcome or sent.offset >= end
            sent.ended = ""
        for given in self.given.values():
            given.was_acked = given.was_acked or bool(given.acked)
            given.acked = ""
            given.visible_ms = 0

    def unreadable(self, records: list[Message]) -> None:
        """
        A disk cannot read these records, until an operator writes them again. Consumers get the messages
        around them; the next process does not know the pops, acknowledgements and ends of transactions that
        are among them.
        """
        keys = {key for record in records for key in record.keys}
        for key in keys & self.sent.keys():
            self.sent[key].may_be_lost = True
        self.doubt()
        if any(record.topic == OP_TOPIC for record in records):
            for sent in self.sent.values():
                sent.ended = ""
        if any(record.topic.startswith(REVIVE_PREFIX) for record in records):
            for given in self.given.values():
                given.was_acked = True
                given.acked = ""
                given.visible_ms = 0

    def delivered(self, group: str, message: Message, *, now_ms: int, era: int,
                  passes: GroupFilter | None = None) -> ProducedMessage:
        """
        A group gets a message.

        @param era: of the topic when the request was sent.
        """
        (key, *_) = message.keys
        sent = self.sent.get(key)
        if sent is None:
            raise PairBroken(f"B1: {group} got {key}, which nobody has sent")
        topic = message.topic
        if topic == RETRY_PREFIX + group or topic.startswith(DLQ_PREFIX):
            topic = message.properties.get("RETRY_TOPIC", "")
            self.sent_back.pop((group, key), None)
            self.returned += 1
        require_pair(sent.recall != DONE, 16, f"{group} got {key}, which was recalled")
        require_pair(sent.body == message.body and sent.topic == topic, 1,
                     f"{group} got {key} in {message.topic} with {len(message.body)} bytes; it was sent to "
                     f"{sent.topic} with {len(sent.body)}")
        require_pair(passes is None or passes.passes(sent), 1,
                     f"{group} got {key}, tag {sent.tag}, number {sent.number}, despite its filter")
        require_pair(now_ms >= sent.due_ms, 2, f"{group} got {key} {sent.due_ms - now_ms} ms too early")
        if sent.kind == HALF:
            require_pair(COMMIT in sent.asked and sent.ended != ROLLBACK, 3,
                         f"{group} got {key}, asked {sorted(sent.asked)}, ended {sent.ended or 'not'}")
        require_pair(not 0 <= sent.era < era, 4,
                     f"{group} got {key}, {sent.kind}, of life {sent.era} of {sent.topic}, now in life {era}")
        got = self.got.setdefault(group, set())
        self.deliveries += 1
        self.again += key in got
        got.add(key)
        return sent

    def popped(
        self, group: str, sent: ProducedMessage, *, pop_ms: int, visible_ms: int,
        copy: tuple[int, int] = (0, 0),
    ) -> Given:
        """
        A message was popped.

        @param copy: one of C{copies}. Two copies that came again equally often are of one pop whose end was
        stored twice, because the outcome of the first time was not known.
        """
        before = self.given.get((group, sent.key))
        if before is not None and pop_ms < before.pop_ms:
            return Given(pop_ms, visible_ms)  # a late answer: it has come again since
        copies = frozenset((copy,)) | (before.copies if before is not None else frozenset())
        has_twins = (before is not None and before.has_twins) or any(
            0 < copy[0] == other[0] and copy != other for other in copies
        )
        if before is not None and sent.kind == PLAIN and sent.life == self.life and not has_twins:
            require_pair(before.acked != ACKED, 5, f"{group} got {sent.key} after its acknowledgement")
            require_pair(pop_ms >= before.visible_ms, 5,
                         f"{group} got {sent.key} {before.visible_ms - pop_ms} ms before its time was over")
        given = self.given[group, sent.key] = Given(
            pop_ms, visible_ms, copies=copies, has_twins=has_twins,
            was_acked=before is not None and bool(before.acked or before.was_acked),
        )
        return given

    def needed(self, topics: frozenset[str]) -> Iterator[ProducedMessage]:
        """What each group must get of these topics."""
        for sent in self.sent.values():
            is_there = sent.topic in topics and sent.outcome == ACKED and not sent.may_be_lost
            if is_there and sent.era == self.era(sent.topic) != UNSURE and (
                sent.kind != HALF or sent.ended == COMMIT
            ) and not sent.recall:
                yield sent

    def missing(self, topics: frozenset[str], group: GroupFilter) -> list[str]:
        """Keys that a group that pulls must still get."""
        got = self.got.get(group.name, set())
        return [one.key for one in self.needed(topics) if one.key not in got and group.passes(one)]

    def unacknowledged(
        self, topics: frozenset[str], group: str, passes: GroupFilter | None = None
    ) -> list[str]:
        """Keys that a group that pops must still get, or acknowledge."""
        found = []
        for one in self.needed(topics):
            if passes is not None and not passes.passes(one):
                continue
            given = self.given.get((group, one.key))
            if given is None or not (given.acked or given.was_acked):
                found.append(one.key)
        return found
