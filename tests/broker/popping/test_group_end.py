# -*- test-case-name: tests.broker.popping.test_group_end -*-
"""Groups that are deleted while they have popped messages, and made again."""

from __future__ import annotations

from typing import Any

from dledger.rocketmq.broker.admin.commands import DELETE_SUBSCRIPTIONGROUP
from dledger.rocketmq.broker.consuming.popping import group_end
from dledger.rocketmq.replication.put_status import PutStatus
from protocols.wire.remoting import RemotingCommand
from tests.broker.popping.rig import REVIVE, PopCase


class GroupEndTests(PopCase):
    """Request 207."""

    def make(self, **options: Any) -> None:
        """One where the consumer may delete groups."""
        super().make(change_hosts="192.168.1.1", **options)

    def delete(self, clean: str = "true", group: str = "G") -> RemotingCommand:
        """The group, with its offsets unless said otherwise."""
        self.settle()
        return self.ask(RemotingCommand(
            code=DELETE_SUBSCRIPTIONGROUP, opaque=9, ext_fields={"groupName": group, "cleanOffset": clean}
        ))

    def test_what_the_next_group_has_acknowledged_is_done(self) -> None:
        """The check points of the deleted group deliver nothing to it, also after a restart."""
        for is_again in (False, True):
            self.send(b"a", b"b", b"c")
            self.assertEqual(len(self.pop()), 3 if not is_again else 6)
            self.assertEqual(self.delete().code, 0)
            self.assertEqual(len(self.parts.revive.table), 0)
            if is_again:
                self.again()
            for given in self.pop():
                self.assertEqual(self.ack(given).code, 0)
            self.wait(15)
            self.assertEqual((self.pop(), self.parts.revive.revived), ([], 0))
            self.parts.metadata.consumer_offsets.delete_group("G", 1)

    def test_without_its_offsets_it_keeps_its_messages(self) -> None:
        """The next group goes on where it was, and so do its messages; and other groups keep theirs."""
        self.send(b"a", b"b")
        self.pop()
        self.assertEqual(len(self.pop(consumerGroup="G2", maxMsgNums=1)), 1)
        self.assertEqual(self.delete("false").code, 0)
        self.assertEqual(self.delete(group="G3").code, 0)
        self.wait(12)
        self.assertEqual(sorted(given.body for given in self.pop()), [b"a", b"b"])
        self.assertEqual([given.body for given in self.pop(consumerGroup="G2", maxMsgNums=1)], [b"b"])

    def test_many_check_points_end_in_several_puts(self) -> None:
        """One after the other, each of them bounded; what was acknowledged meanwhile is left."""
        self.patch(group_end, "TURN_MESSAGES", 2)
        self.send(*(b"%d" % number for number in range(5)))
        given = [self.pop(maxMsgNums=1)[0] for _ in range(5)]
        self.ack(given[1])
        acks = len([one for one in self.of(REVIVE) if one.tags != "ck"])
        self.assertEqual(self.delete().code, 0)
        self.assertEqual(len([one for one in self.of(REVIVE) if one.tags != "ck"]), acks + 4)
        self.assertEqual((len(self.parts.revive.table), self.ack(given[0]).code), (0, 208))

    def test_a_refused_ack_is_reported(self) -> None:
        """The group is deleted all the same, and its messages come again."""
        self.send(b"a")
        self.pop()
        put = self.parts.pipeline.put

        def failing(*arguments: object, **named: object) -> object:
            found = put(*arguments, **named)  # type: ignore[arg-type]
            found.done.addCallback(lambda _: PutStatus.SERVICE_NOT_AVAILABLE)
            return found

        patch = self.patch(self.parts.pipeline, "put", failing)
        answer = self.delete()
        patch.restore()
        self.assertEqual((answer.code, answer.remark), (1, "SERVICE_NOT_AVAILABLE (14)"))
        self.assertEqual(len(self.parts.revive.table), 1)
        self.assertIsNone(self.parts.metadata.groups.get("G"))
