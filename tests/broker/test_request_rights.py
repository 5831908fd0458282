# -*- test-case-name: tests.broker.test_request_rights -*-
"""What an account may see, on each road on which a message can leave a broker with access control."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dledger.rocketmq.broker.access.request_rights import RULES, SIGNED_CODES, topics_of
from protocols.rocketmq.signing import Credentials, signed
from protocols.wire.remoting import RemotingCommand, encode_command
from protocols.wire.rocketmq.message import decode_message, encode_properties
from tests.broker.request_rights import PAGE, wanted
from tests.broker.send_support import send_of
from tests.broker.test_gate import GateCase, command, pull
from tests.protocols.fakes import sent_commands

ACCOUNTS = """
accounts:
- {accessKey: payer-key, secretKey: secret-of-payer, topicPerms: [T1=PUB|SUB, T2=PUB|SUB],
   groupPerms: [G=SUB, pay=PUB]}
- {accessKey: half-member, secretKey: secret-of-half, topicPerms: [T1=PUB|SUB], groupPerms: [G=SUB]}
- {accessKey: lacks-all, secretKey: secret-of-none}
- {accessKey: asker-key, secretKey: secret-of-asker, topicPerms: [T9=PUB]}
- {accessKey: by-default, secretKey: secret-of-default, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
   topicPerms: [T2=DENY]}
- {accessKey: operator, secretKey: secret-of-operator, admin: true}
"""
PAYER = Credentials("payer-key", "secret-of-payer")
HALF_MEMBER = Credentials("half-member", "secret-of-half")
NOBODY = Credentials("lacks-all", "secret-of-none")
ASKER = Credentials("asker-key", "secret-of-asker")
BY_DEFAULT = Credentials("by-default", "secret-of-default")
OPERATOR = Credentials("operator", "secret-of-operator")

MARK = b"CONFIDENTIAL transfer"


def produces(
    client_id: str, *groups: str, consumes: Mapping[str, tuple[str, ...]] | None = None
) -> RemotingCommand:
    """A heartbeat of a producer, or of a consumer."""
    return command(34, body=json.dumps({
        "clientID": client_id, "producerDataSet": [{"groupName": group} for group in groups],
        "consumerDataSet": [
            {"groupName": group, "subscriptionDataSet": [{"topic": one, "subString": "*"} for one in topics]}
            for group, topics in (consumes or {}).items()
        ],
    }).encode())


class Client:
    """One connection."""

    def __init__(self, case: RightsCase) -> None:
        self._case = case
        self.transport = case.connect()
        self.connection = case.connection

    def say(self, request: RemotingCommand, keys: Credentials) -> RemotingCommand:
        """The answer to a request."""
        before = len(sent_commands(self.transport.value()))
        self.connection.dataReceived(encode_command(signed(request, keys)))
        self._case.settle()
        (found,) = [one for one in sent_commands(self.transport.value())[before:] if one.is_response]
        return found

    def reported(self, code: int) -> list[RemotingCommand]:
        """The notices that the broker sent by itself."""
        return [
            one for one in sent_commands(self.transport.value()) if not one.is_response and one.code == code
        ]

    def lose(self) -> None:
        """It ends."""
        self.connection.connectionLost()


class RightsCase(GateCase):
    """Accounts with rights to different topics, each on connections of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.rewrite(ACCOUNTS)

    def open(self) -> Client:
        """One more connection."""
        return Client(self)

    def put(self, topic: str, body: bytes = MARK, **properties: str) -> int:
        """A message by somebody who may do everything. @return: its offset in the log."""
        said = self.open().say(send_of(
            body, topic=topic, properties=encode_properties(properties).decode()), OPERATOR)
        self.assertEqual(said.code, 0, said.remark)
        return int(said.ext_fields["msgId"][16:], 16)


class TableTests(RightsCase):
    """The rules."""

    def test_current(self) -> None:
        """C{python -m tests.broker.request_rights --write} would change nothing."""
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(text, wanted(text), "python -m tests.broker.request_rights --write")

    def test_all_codes(self) -> None:
        """Each request that a broker answers has a rule, and no other."""
        self.assertEqual(sorted(RULES), sorted(self.broker.router.codes))

    def test_no_message_for_a_signature(self) -> None:
        """An account without rights asks all that it may about a topic: no message is in an answer."""
        self.put("T2", KEYS="key")
        self.put("%RETRY%G", RETRY_TOPIC="T2")
        fields = {
            "topic": "T2", "consumerGroup": "G", "group": "G", "queueId": "0", "queueOffset": "0",
            "offset": "0", "timestamp": "0", "maxMsgNums": "9", "key": "key", "producerGroup": "P", "b": "T2",
        }
        for code in sorted(SIGNED_CODES):
            client = self.open()
            answer = client.say(command(code, fields), NOBODY)
            self.assertNotIn("permission", answer.remark or "", code)
            self.assertNotIn(MARK, client.transport.value(), code)

    def test_waiting_topics(self) -> None:
        """A message is its topic's wherever it waits; a retry is its group's, too."""
        for topic, named, expected in (
            ("T1", {"REAL_TOPIC": "T2", "RETRY_TOPIC": "T2"}, ("T1",)),
            ("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "T2"}, ("T2",)),
            ("TRANS_CHECK_MAX_TIME_TOPIC", {"REAL_TOPIC": "T2"}, ("T2",)),
            ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "T2"}, ("T2",)),
            ("SCHEDULE_TOPIC_XXXX", {}, ("SCHEDULE_TOPIC_XXXX",)),
            ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "%RETRY%G", "RETRY_TOPIC": "T2"}, ("%RETRY%G", "T2")),
            ("%RETRY%G", {"RETRY_TOPIC": "T2"}, ("%RETRY%G", "T2")),
            ("%DLQ%G", {"RETRY_TOPIC": "T2"}, ("%DLQ%G", "T2")),
            ("%DLQ%G", {}, ("%DLQ%G",)),
        ):
            self.assertEqual(topics_of(topic, named), expected, topic)


class RoadTests(RightsCase):
    """The right to a topic holds on every road."""

    def bodies(self, request: RemotingCommand, keys: Credentials) -> tuple[int, list[bytes]]:
        """Code and messages of an answer."""
        answer = self.open().say(request, keys)
        found, at = [], 0
        while at < len(answer.body):
            size = int.from_bytes(answer.body[at:at + 4], "big")
            found.append(decode_message(answer.body[at:at + size]).body)
            at += size
        return answer.code, found

    def test_retries_and_dead_letters(self) -> None:
        """A member of the group gets those of the topics that it may read, by pull and by key."""
        for topic in ("%RETRY%G", "%DLQ%G"):
            for real in ("T2", "T1", "T2"):
                self.put(topic, real.encode(), RETRY_TOPIC=real, KEYS="key")
            self.settle(1.0)
            by_key = command(12, {"topic": topic, "key": "key", "maxNum": "9", "beginTimestamp": "0",
                                  "endTimestamp": str(2**62)})
            for request in (pull(topic=topic), by_key):
                self.assertEqual(self.bodies(request, PAYER), (0, [b"T2", b"T1", b"T2"]), request.code)
                self.assertEqual(self.bodies(request, HALF_MEMBER), (0, [b"T1"]), request.code)
                self.assertEqual(self.bodies(request, NOBODY), (1, []), request.code)
                self.assertEqual(self.bodies(request, OPERATOR), (0, [b"T2", b"T1", b"T2"]), request.code)

    def test_pop_of_retries(self) -> None:
        """POP finds the retries of a topic by itself; only an administrator names them."""
        for code in (200_050, 200_054, 200_055):
            for topic in ("%RETRY%G", "%DLQ%G"):
                asked = command(code, {"topic": topic, "consumerGroup": "G", "queueId": "0"})
                self.refused(asked, PAYER, "No permission for topic")
                self.allowed(asked, OPERATOR)

    def test_by_id(self) -> None:
        """Of a retry, a dead letter, a delayed message."""
        places = [
            self.put("%RETRY%G", RETRY_TOPIC="T2"), self.put("%DLQ%G", RETRY_TOPIC="T2"),
            self.put("T2", DELAY="5"), self.put("T2", TRAN_MSG="true", PGROUP="pay"),
        ]
        for offset in places:
            view = command(33, {"offset": str(offset)})
            self.refused(view, HALF_MEMBER, "No permission for topic T2")
            self.refused(view, NOBODY, "No permission for")
            self.assertEqual(self.answer(view, PAYER)[0], 0)

    def test_own_topics(self) -> None:
        """A default does not open the topics in which the broker keeps messages of other topics."""
        for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
                      "DefaultCluster_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_DefaultCluster"):
            self.refused(pull(topic=topic), BY_DEFAULT, f"No permission for topic {topic}")
            self.allowed(pull(topic=topic), OPERATOR)
        self.refused(pull(topic="T2"), BY_DEFAULT, "No permission for topic T2")
        self.allowed(pull(topic="T1"), BY_DEFAULT)

    def test_retries_of_pop(self) -> None:
        """Their topic looks like a group: a default for groups does not open those of others."""
        self.put("T2")
        self.put("T1")
        self.broker.metadata.groups.find("G", 0)
        self.refused(pull(topic="%RETRY%G_T2", group="G_T2"), BY_DEFAULT, "No permission for group G_T2")
        self.allowed(pull(topic="%RETRY%G_T1", group="G_T1"), BY_DEFAULT)
        self.rewrite(ACCOUNTS.replace("topicPerms: [T2=DENY]", "topicPerms: [T2=SUB], groupPerms: [G=DENY]"))
        self.refused(pull(topic="%RETRY%G_T2", group="other"), BY_DEFAULT, "No permission for group G_T2")
        self.refused(send_of(topic="%RETRY%G_T2"), BY_DEFAULT, "No permission for group G_T2")
        self.rewrite(ACCOUNTS.replace("topicPerms: [T2=DENY]", "groupPerms: [G_T2=SUB]"))
        self.allowed(pull(topic="%RETRY%G_T2", group="G_T2"), BY_DEFAULT)

    def test_forged_retries(self) -> None:
        """Nobody makes a message of another topic out of a retry."""
        forged = send_of(topic="%RETRY%G", properties="RETRY_TOPIC\x01T2\x02")
        self.refused(forged, HALF_MEMBER, "No permission for topic T2")
        self.allowed(forged, PAYER)
        offset = self.put("T1", RETRY_TOPIC="T2")
        back = command(36, {"group": "G", "offset": str(offset), "delayLevel": "-1"})
        self.assertEqual(self.answer(back, HALF_MEMBER)[0], 0)
        self.settle(1.0)
        self.assertEqual(self.bodies(pull(topic="%DLQ%G"), HALF_MEMBER)[1], [MARK])

    def test_replies(self) -> None:
        """Only who may consume something replies; another topic is not a reply's, and needs PUB."""
        for code in (324, 325):
            for topic, keys, words in (
                ("DefaultCluster_REPLY_TOPIC", NOBODY, "No permission for replies"),
                ("DefaultCluster_REPLY_TOPIC", ASKER, "No permission for replies"),
                ("T2", NOBODY, "No permission for topic T2"),
                ("T2", HALF_MEMBER, "No permission for topic T2"),
            ):
                request = send_of(code=code, topic=topic)
                if code == 324:
                    request = command(324, {"topic": topic, "producerGroup": "P"})
                end = self.broker.store.log.end_offset
                self.refused(request, keys, words)
                self.assertEqual(self.broker.store.log.end_offset, end)
            self.allowed(send_of(code=325, topic="DefaultCluster_REPLY_TOPIC"), HALF_MEMBER)


class ClientTests(RightsCase):
    """Clients hear what is theirs."""

    def half(self, topic: str = "T2") -> None:
        """A half message of group C{pay}, and the time until somebody is asked about it."""
        self.put(topic, TRAN_MSG="true", PGROUP="pay", UNIQ_KEY="K")

    def wait(self) -> None:
        """A round of questions passes."""
        self.settle(70.0)

    def test_questions(self) -> None:
        """A producer is asked about a transaction, and gets its message, if it may send to the topic."""
        strangers = [(self.open(), keys) for keys in (NOBODY, HALF_MEMBER, ASKER)]
        self.half()
        self.wait()
        for number, (client, keys) in enumerate(strangers):
            self.assertEqual(client.say(produces(f"c{number}", "pay"), keys).code, 0)
        self.wait()
        for client, _ in strangers:
            self.assertEqual(client.reported(39), [])
            self.assertNotIn(MARK, client.transport.value())
        payer = self.open()
        self.assertEqual(payer.say(produces("payer", "pay"), PAYER).code, 0)
        for number, (client, keys) in enumerate(strangers):  # they are heard last
            client.say(produces(f"c{number}", "pay"), keys)
        self.wait()
        self.assertIn(MARK, payer.reported(39)[0].body)
        for client, _ in strangers:
            self.assertEqual(client.reported(39), [])

    def test_right_withdrawn(self) -> None:
        """The right counts that it has when somebody is asked."""
        payer = self.open()
        payer.say(produces("payer", "pay"), PAYER)
        self.half()
        self.rewrite(ACCOUNTS.replace("T2=PUB|SUB", "T2=SUB"))
        self.wait()
        self.assertEqual(payer.reported(39), [])

    def test_client_id(self) -> None:
        """It belongs to the account that registered it, while a connection of that client lives."""
        victim, intruder = self.open(), self.open()
        self.assertEqual(victim.say(produces("asker@1", "P"), ASKER).code, 0)
        for consumes in ({}, {"G": ("T1",)}):
            said = intruder.say(produces("asker@1", "P", consumes=consumes), HALF_MEMBER)
            self.assertEqual(said.code, 1)
            self.assertIn("a client of another account is connected with this id", said.remark or "")
        self.assertEqual(intruder.say(produces("asker@1", "P"), NOBODY).code, 1)
        self.assertEqual(self.broker.consumer_table.members_of("G"), [])
        lock = json.dumps({"consumerGroup": "G", "clientId": "asker@1", "mqSet": []}).encode()
        self.refused(command(41, body=lock), HALF_MEMBER, "No permission for client asker@1")
        reply = send_of(b"yes", code=325, topic="DefaultCluster_REPLY_TOPIC",
                        properties="REPLY_TO_CLIENT\x01asker@1\x02")
        self.assertEqual(self.open().say(reply, HALF_MEMBER).code, 0)
        self.assertEqual((len(victim.reported(326)), intruder.reported(326)), (1, []))
        self.rewrite(ACCOUNTS.replace("asker-key", "asker-no-more"))
        self.assertIn("not found", self.open().say(reply, HALF_MEMBER).remark or "")
        self.assertEqual(len(victim.reported(326)), 1)

    def test_same_account(self) -> None:
        """A client that connects again has its id at once, and loses it with its last connection."""
        first, second, other = self.open(), self.open(), self.open()
        for client in (first, second, first):
            self.assertEqual(client.say(produces("asker@1", "P"), ASKER).code, 0)
        first.lose()
        self.assertEqual(other.say(produces("asker@1", "P"), HALF_MEMBER).code, 1)
        self.assertEqual(second.say(produces("asker@2", "P"), ASKER).code, 0)
        self.assertEqual(other.say(produces("asker@1", "P"), HALF_MEMBER).code, 0)
        other.lose()
        second.lose()
        gate = self.broker.gate
        assert gate is not None
        self.assertEqual((gate._clients, gate._owners), ({}, {}))

    def test_no_squatters(self) -> None:
        """An account without any right holds no id, and is no producer; its heartbeat is answered."""
        squatter = self.open()
        self.assertEqual(squatter.say(produces("asker@1", "P"), NOBODY).code, 0)
        self.assertEqual(len(self.broker.producer_table), 0)
        other = self.open()  # of an account with rights, which then asks as one without
        self.assertEqual(other.say(produces("other@1", "P"), HALF_MEMBER).code, 0)
        self.assertEqual(other.say(produces("asker@1", "Q"), NOBODY).code, 0)
        self.assertIsNone(self.broker.producer_table.client("asker@1"))
        other.lose()
        self.assertEqual(self.open().say(produces("asker@1", "P"), ASKER).code, 0)
        self.assertEqual(len(self.broker.producer_table), 1)

    def test_group_right(self) -> None:
        """A right to the group makes a producer of it, but opens no topic."""
        secret = "secretKey: secret-of-none"
        self.rewrite(ACCOUNTS.replace(secret, f"{secret}, groupPerms: [pay=SUB]"))
        client = self.open()
        client.say(produces("c", "pay"), NOBODY)
        self.assertEqual(len(self.broker.producer_table), 1)
        self.half()
        self.wait()
        self.assertEqual(client.reported(39), [])
