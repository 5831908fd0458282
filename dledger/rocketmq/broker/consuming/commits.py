# -*- test-case-name: tests.broker.consuming.test_commits -*-
"""
Which commits of consumers count.

RocketMQ's clients commit their offsets every five seconds, also after their topic was deleted and made
again: an offset of the deleted topic would pass over messages of the next one.

Rule 1: offsets end where queues end. A commit beyond the end of its queue counts nothing.
Rule 2: a connection has read a queue in one life of its topic: the one in which it last asked for its offset,
pulled from its beginning, or pulled from anywhere for the first time. Its later commits and pulls are of that
life. If the topic was deleted since, a commit counts nothing, and a pull is sent to the
beginning.

Rule 2 knows nothing of a consumer whose connection is new; then rule 1 alone counts. A slave's queue may be
behind its master's, so rule 1 counts at a master only.
"""

from __future__ import annotations

from dledger.rocketmq.broker.options.inside import BrokerInside
from protocols.rocketmq.commands import CommandConnection

#: Queues of groups, of all connections, that are remembered; for others rule 1 alone counts.
READ_MAX = 262_144

#: Group, topic and number of a queue.
_Read = tuple[str, str, int]


class CommitJudge:
    """
    Judges commits, for one broker.

    @ivar refused: number of commits that counted nothing.
    """

    def __init__(self, inside: BrokerInside) -> None:
        self._config = inside.config
        self._store = inside.store
        self._lives: dict[CommandConnection, dict[_Read, int]] = {}
        self._count = 0
        self.refused = 0

    def __len__(self) -> int:
        """Number of queues of groups that are remembered."""
        return self._count

    def reads(self, connection: CommandConnection, group: str, topic: str, queue_id: int) -> None:
        """A consumer knows the topic as it is now. @raise OSError: reading failed."""
        lives, key = self._lives.setdefault(connection, {}), (group, topic, queue_id)
        if key not in lives:
            if self._count >= READ_MAX or connection.is_lost:
                return
            self._count += 1
        lives[key] = self._store.deleted.place_of(topic)

    def is_former(self, connection: CommandConnection, group: str, topic: str, queue_id: int) -> bool:
        """
        Whether a consumer has read the queue of a topic that was deleted since.

        @raise OSError: reading failed.
        """
        life = self._lives.get(connection, {}).get((group, topic, queue_id))
        return life is not None and life < self._store.deleted.place_of(topic)

    def problem(
        self, connection: CommandConnection, group: str, topic: str, queue_id: int, offset: int
    ) -> str:
        """
        Why a commit counts nothing; empty if it counts.

        @raise OSError: reading failed.
        """
        if self.is_former(connection, group, topic, queue_id):
            self.refused += 1
            return f"topic[{topic}] was deleted since this consumer has read it: ask for the offset again"
        end = self.end_of(topic, queue_id)
        if offset > end and not self._config.role.is_slave:
            self.refused += 1
            return f"the offset {offset} is beyond the end of queue {queue_id} of {topic}, {end}"
        return ""

    def end_of(self, topic: str, queue_id: int) -> int:
        """
        The offset after the last message of a queue, also of one that is not dispatched yet here: a slave may
        have been faster.
        """
        bounds, queue = self._store.queues.bounds(topic, queue_id), (topic, queue_id)
        return max(0 if bounds is None else bounds[1], self._store.log.queue_offsets.get(queue, 0))

    def connection_lost(self, connection: CommandConnection) -> None:
        """A consumer's connection has ended."""
        self._count -= len(self._lives.pop(connection, {}))
