# -*- test-case-name: tests.broker.test_gate -*-
"""A broker with access control: who may do what, by commands and by native frames."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import attrs
from twisted.internet.address import IPv4Address
from twisted.logger import capturedLogs

from dledger.rocketmq.broker.access.gate import CHANGES, broker_change
from protocols.rocketmq.signing import Credentials, signed
from protocols.wire.remoting import RemotingCommand, encode_command
from protocols.wire.rocketmq.broker_frames import (
    BrokerAnswer,
    BrokerRequest,
    OffsetsRequest,
    PutRequest,
    ReadAnswer,
    ReadRequest,
    decode_broker_frame,
    request_parts,
)
from protocols.wire.rocketmq.broker_layout import CHALLENGE_CODE, CHALLENGE_FIELD, WIRE_VERSION_CODE
from tests.broker.send_support import send_of
from tests.broker.test_service import ServiceCase
from tests.protocols.fakes import sent_commands

FILE = """
globalWhiteRemoteAddresses: [%s]
accounts:
- accessKey: producer
  secretKey: the-secret-of-it
  topicPerms: [T1=PUB]
  groupPerms: [again=SUB]
- accessKey: consumer
  secretKey: another-secret
  topicPerms: [T1=SUB]
  groupPerms: [G=SUB]
- accessKey: operator
  secretKey: third-secret
  admin: true
- accessKey: at-home
  secretKey: fourth-secret
  whiteRemoteAddress: 192.168.1.1
  defaultTopicPerm: PUB
"""
PRODUCER = Credentials("producer", "the-secret-of-it")
CONSUMER = Credentials("consumer", "another-secret")
OPERATOR = Credentials("operator", "third-secret")


def command(code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    """A request that no key has signed."""
    return RemotingCommand(code=code, opaque=1, ext_fields=fields or {}, body=body, version=409)


def pull(topic: str = "T1", group: str = "G", code: int = 11) -> RemotingCommand:
    """A pull."""
    return command(code, {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "8",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0",
    })


def heartbeat(group: str, *topics: str) -> RemotingCommand:
    """A consumer names its topics."""
    wanted = [{"topic": topic, "subString": "*"} for topic in topics]
    return command(34, body=json.dumps({
        "clientID": "c", "consumerDataSet": [{"groupName": group, "subscriptionDataSet": wanted}],
        "producerDataSet": [],
    }).encode())


class GateCase(ServiceCase):
    """A master whose accounts are those of L{FILE}."""

    def setUp(self) -> None:
        super().setUp()
        self.path = Path(self.mktemp())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(FILE % "")
        self.start(aclEnable="true", acl_file=str(self.path))
        self.addCleanup(self.stop)

    def answer(self, request: RemotingCommand, keys: Credentials | None = None) -> tuple[int, str]:
        """Code and remark of the answer to a request."""
        asked = request if keys is None else signed(request, keys)
        (found,) = [one for one in self.ask(asked) if one.is_response]
        return found.code, (found.remark or "").replace("'", "")

    def allowed(self, request: RemotingCommand, keys: Credentials | None = None) -> None:
        """The gate has let it pass, whatever its answer is."""
        code, remark = self.answer(request, keys)
        for words in ("No permission", "signature", "acl config", "accessKey", "admin permission"):
            self.assertNotIn(words, remark, code)

    def refused(self, request: RemotingCommand, keys: Credentials | None, words: str) -> None:
        """It has not: Java's code, and the reason."""
        code, remark = self.answer(request, keys)
        self.assertEqual(code, 1)
        self.assertIn(words, remark)

    def rewrite(self, text: str) -> None:
        """The file changes, and the time passes after which this counts."""
        self.path.write_text(text)
        status = os.stat(self.path)
        os.utime(self.path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))
        self.settle(6.0)


class SignatureTests(GateCase):
    """The sender of a request."""

    def test_all_requests(self) -> None:
        """Without a signature nothing is answered, whatever the code; unknown codes stay unknown."""
        for code in self.broker.router.codes:
            self.refused(command(code), None, "No accessKey is configured")
        self.assertEqual(self.answer(command(12345))[0], 3)
        self.refused(send_of(code=10), None, "No accessKey is configured")

    def test_sends(self) -> None:
        """Each road of a message into the log; what was refused is not in it."""
        end = self.broker.store.log.end_offset
        for code in (10, 310, 320):
            for keys in (None, CONSUMER, Credentials("producer", "a-wrong-secret")):
                self.assertEqual(self.answer(send_of(code=code), keys)[0], 1)
        self.assertEqual(self.broker.store.log.end_offset, end)
        for code in (10, 310):
            self.assertEqual(self.answer(send_of(code=code), PRODUCER), (0, ""))
        self.assertGreater(self.broker.store.log.end_offset, end)
        self.refused(send_of(code=320, topic="T2"), PRODUCER, "No permission for topic T2")

    def test_one_of_many(self) -> None:
        """In one read, each is answered for itself, and in the log are the allowed ones."""
        requests = [
            signed(send_of(b"1", opaque=1), PRODUCER), send_of(b"2", opaque=2),
            signed(send_of(b"3", opaque=3, topic="T2"), PRODUCER), signed(send_of(b"4", opaque=4), PRODUCER),
        ]
        self.assertEqual(sorted((one.opaque, one.code) for one in self.ask(*requests)),
                         [(1, 0), (2, 1), (3, 1), (4, 0)])
        self.assertEqual(self.broker.store.queues.next_indexes()["T1", 0], 2)

    def test_wrong_signatures(self) -> None:
        """A field that changed on the way, an account that is not there, another's secret."""
        request = signed(send_of(), PRODUCER)
        fields = {**request.ext_fields, "b": "T2"}
        changed = RemotingCommand(code=request.code, opaque=1, ext_fields=fields, body=request.body)
        self.refused(changed, None, "Check signature failed for accessKey=producer")
        self.refused(send_of(), Credentials("nobody!", "the-secret-of-it"), "No acl config for nobody!")
        self.refused(send_of(), Credentials("producer", "another-secret"), "Check signature failed")

    def test_white_address(self) -> None:
        """An account's own address needs no signature, only its name; the rights are still its own."""
        fields = {**send_of().ext_fields, "AccessKey": "at-home"}
        self.allowed(RemotingCommand(code=310, opaque=1, ext_fields=fields, body=b"x"))
        pulled = pull()
        fields = {**pulled.ext_fields, "AccessKey": "at-home"}
        request = RemotingCommand(code=11, opaque=1, ext_fields=fields)
        self.refused(request, None, "No permission for topic T1")

    def test_globally_white(self) -> None:
        """Everything is allowed from there, from the next look at the file on."""
        self.rewrite(FILE % "192.168.1.*")
        self.allowed(send_of())
        self.allowed(command(17, {"topic": "new", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
                                  "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
                                  "defaultTopic": "TBW102"}))
        self.rewrite(FILE % "")
        self.refused(send_of(), None, "No accessKey is configured")

    def test_unsound_change(self) -> None:
        """A slip in the file is said once, and the accounts stay as they were."""
        with capturedLogs() as events:
            self.rewrite("accounts: [")
            self.settle(20.0)
            self.rewrite("accounts: [{accessKey: !!timestamp x}]")
        said = [event["reason"] for event in events if "accounts stay" in (event.get("log_format") or "")]
        self.assertEqual(len(said), 2)
        self.allowed(send_of(), PRODUCER)
        self.path.unlink()
        self.settle(6.0)
        self.allowed(send_of(), PRODUCER)
        self.rewrite("accounts: [{accessKey: producer, secretKey: a-new-secret, defaultTopicPerm: PUB}]")
        self.refused(send_of(), PRODUCER, "Check signature failed")
        self.allowed(send_of(), Credentials("producer", "a-new-secret"))


    def test_half_written_file(self) -> None:
        """A sound half of the new file, without its line that denies a topic, does not count."""
        whole = (FILE % "").replace("T1=PUB]", "T1=DENY]\n  defaultTopicPerm: PUB")
        self.rewrite(whole)
        self.refused(send_of(), PRODUCER, "No permission")
        self.path.write_text(whole.replace("  topicPerms: [T1=DENY]\n", ""))
        self.settle(2.5)
        self.refused(send_of(), PRODUCER, "No permission")
        self.rewrite(whole + "# the end\n")
        self.refused(send_of(), PRODUCER, "No permission")
        self.rewrite(FILE % "")
        self.allowed(send_of(), PRODUCER)


class PopRightTests(GateCase):
    """POP needs the right to the topic and to the group."""

    def pop(self, code: int, topic: str = "T1", group: str = "G") -> RemotingCommand:
        """One of its requests."""
        return command(code, {"topic": topic, "consumerGroup": group, "queueId": "0"})

    def test_rights(self) -> None:
        """Each request; an ack may name the topic of retries, which only a group of its own has."""
        for code in (200_050, 200_051, 200_053, 200_054, 200_055):
            self.allowed(self.pop(code), CONSUMER)
            self.refused(self.pop(code), PRODUCER, "No permission for topic T1")
            self.refused(self.pop(code, group="other"), CONSUMER, "No permission for group other")
            self.refused(self.pop(code, topic="T2"), CONSUMER, "No permission for topic T2")
        self.allowed(self.pop(200_051, "%RETRY%G_T1"), CONSUMER)
        self.refused(self.pop(200_051, "%RETRY%G_T2"), CONSUMER, "No permission for topic T2")
        self.refused(self.pop(200_050, "%RETRY%G_T1"), CONSUMER, "No permission for group G_T1")

    def test_batches(self) -> None:
        """Each ack of a batch."""
        acks = [{"c": "G", "t": topic, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "AQ=="}
                for topic in ("T1", "T2")]
        for count in (1, 2):
            body = json.dumps({"brokerName": "b", "acks": acks[:count]}).encode()
            if count == 1:
                self.allowed(command(200_151, body=body), CONSUMER)
            else:
                self.refused(command(200_151, body=body), CONSUMER, "No permission for topic T2")
        self.assertEqual(self.answer(command(200_151, body=b"{"), CONSUMER)[0], 13)


class RightsTests(GateCase):
    """What an account may do."""

    def test_topics_and_groups(self) -> None:
        """Each request that names a topic or a group, by an account that may and by one that may not."""
        lock = json.dumps({"consumerGroup": "G", "clientId": "c", "mqSet": []}).encode()
        update = {"consumerGroup": "G", "topic": "T1", "queueId": "0", "commitOffset": "0"}
        for request, words in (
            (pull(), "topic T1"), (pull(code=361), "topic T1"), (heartbeat("G", "T1", "%RETRY%G"), "group G"),
            (command(15, update), "topic T1"), (command(38, {"consumerGroup": "G"}), "group G"),
            (command(35, {"consumerGroup": "G", "clientID": "c"}), "group G"),
            (command(36, {"group": "G", "offset": "0", "delayLevel": "1"}), "group G"),
            (command(41, body=lock), "group G"), (command(42, body=lock), "group G"),
        ):
            self.allowed(request, CONSUMER)
            self.allowed(request, OPERATOR)
            self.refused(request, PRODUCER, f"No permission for {words}: see account producer")

    def test_both_are_needed(self) -> None:
        """A group of one's own does not open another topic, nor the other way round."""
        self.refused(pull(topic="T2"), CONSUMER, "No permission for topic T2")
        self.refused(pull(group="H"), CONSUMER, "No permission for group H")
        self.refused(heartbeat("G", "T1", "T2"), CONSUMER, "No permission for topic T2")
        self.refused(heartbeat("H", "T1"), CONSUMER, "No permission for group H")
        self.assertEqual(len(self.broker.consumer_table), 0)

    def test_by_place_in_the_log(self) -> None:
        """A message that is named by its offset needs SUB of its topic, to be seen or sent back."""
        (reported,) = self.ask(signed(send_of(topic="T2"), OPERATOR))
        self.assertEqual(reported.code, 0)
        (reported,) = self.ask(signed(send_of(topic="T1"), OPERATOR))
        offsets = [int(reported.ext_fields["msgId"][16:], 16)]
        offsets.insert(0, 0)
        for offset, is_own in zip(offsets, (False, True), strict=True):
            view = command(33, {"offset": str(offset)})
            back = command(36, {"group": "G", "offset": str(offset), "delayLevel": "1"})
            for request in (view, back):
                self.allowed(request, OPERATOR)
                if is_own:
                    self.allowed(request, CONSUMER)
                    self.refused(request, PRODUCER, "No permission for ")
                else:
                    self.refused(request, CONSUMER, "No permission for topic T2")
        # Where no message begins nothing can be read.
        self.assertIn("can not find message", self.answer(command(33, {"offset": "1"}), CONSUMER)[1])
        self.refused(command(33, {"offset": "x"}), CONSUMER, "is not a number")

    def test_retries_and_traces(self) -> None:
        """A topic of retries counts as its group; everybody may send traces."""
        self.allowed(send_of(topic="%RETRY%again"), PRODUCER)
        self.refused(send_of(topic="%RETRY%G"), PRODUCER, "No permission for group G")
        self.allowed(send_of(topic="RMQ_SYS_TRACE_TOPIC"), CONSUMER)
        traces = pull(topic="RMQ_SYS_TRACE_TOPIC")
        self.refused(traces, CONSUMER, "No permission for topic RMQ_SYS_TRACE_TOPIC")

    def test_transactions(self) -> None:
        """The end of a transaction needs PUB of its real topic; the half message is seen with SUB of it."""
        half = send_of(b"half", topic="T1", properties="TRAN_MSG\x01true\x02PGROUP\x01P\x02")
        (reported,) = self.ask(signed(half, PRODUCER))
        self.assertEqual(reported.code, 0)
        offset = str(int(reported.ext_fields["msgId"][16:], 16))
        end = command(37, {"producerGroup": "P", "commitOrRollback": "12", "commitLogOffset": offset,
                           "tranStateTableOffset": "0"})
        self.refused(end, None, "accessKey")
        self.refused(end, CONSUMER, "topic T1")
        self.refused(command(33, {"offset": offset}), PRODUCER, "topic T1")
        self.assertEqual(self.answer(end, PRODUCER), (0, ""))
        self.allowed(command(33, {"offset": offset}), CONSUMER)

    def test_administration(self) -> None:
        """Changes need an administrator; what only reports needs a signature."""
        administrators = []
        for code in self.broker.router.codes:
            if "Need admin permission" in self.answer(command(code), PRODUCER)[1]:
                administrators.append(code)
        self.assertEqual(administrators, list(CHANGING))
        for code in administrators:
            self.refused(command(code), PRODUCER, f"Need admin permission for request code={code}")
            self.allowed(command(code), OPERATOR)
        for code in (21, 26, 28, 43, 45, 201, 907):
            self.allowed(command(code), PRODUCER)
        query = {"consumerGroup": "G", "topic": "T1", "queueId": "0"}
        self.allowed(command(14, query), PRODUCER)

    def test_malformed(self) -> None:
        """A request without its topic is refused, not passed on."""
        self.refused(command(11, {"topic": "T1"}), CONSUMER, "consumerGroup")
        self.refused(command(34, body=b"{"), OPERATOR, "heartbeat: ")
        self.refused(command(310), PRODUCER, "the custom field <b> is null")


class NativeTests(GateCase):
    """Native frames have the rights of the account that asked for the wire version."""

    def natives(
        self, keys: Credentials | None, *requests: BrokerRequest, asks: bool = True
    ) -> list[BrokerAnswer]:
        """The answers on a new connection."""
        self.connect()
        if asks:
            challenge = self.say(command(CHALLENGE_CODE), keys).ext_fields.get(CHALLENGE_FIELD, "")
            self.said = self.say(command(WIRE_VERSION_CODE, {CHALLENGE_FIELD: challenge}), keys)
        return self.more(*requests)

    def say(self, request: RemotingCommand, keys: Credentials | None = None) -> RemotingCommand:
        """The answer to a request on the connection that is open."""
        transport = self.connection.transport
        transport.clear()
        self.connection.dataReceived(encode_command(request if keys is None else signed(request, keys)))
        self.settle()
        return sent_commands(transport.value())[0]

    def more(self, *requests: BrokerRequest) -> list[BrokerAnswer]:
        """The answers on the connection that is open."""
        transport = self.connection.transport
        transport.clear()
        for number, request in enumerate(requests, 1):
            self.connection.dataReceived(b"".join(request_parts(request, number)))
        self.settle()
        data, found = transport.value(), []
        while data:
            size = 12 + int.from_bytes(data[8:12], "big")
            found.append(decode_broker_frame(data[:size])[1])
            data = data[size:]
        return found  # type: ignore[return-value]

    def test_rights(self) -> None:
        """PUT by topic; the whole log for administrators."""
        put, other = PutRequest(topic="T1", bodies=(b"a",)), PutRequest(topic="T2", bodies=(b"b",))
        read = ReadRequest(begin_offset=0)
        end = self.broker.store.log.end_offset
        for keys, codes in ((PRODUCER, [16, 0, 1, 0]), (CONSUMER, [16, 16, 1, 0]), (OPERATOR, [0, 0, 0, 0])):
            answers = self.natives(keys, other, put, read, OffsetsRequest())
            self.assertEqual(self.said.code, 0)
            self.assertEqual(sorted(answer.code for answer in answers), sorted(codes), keys)
        self.assertGreater(self.broker.store.log.end_offset, end)
        self.rewrite((FILE % "").replace("admin: true", "admin: true\n  topicPerms: [T2=DENY]"))
        (answer,) = self.natives(OPERATOR, read)
        self.assertIn("not an administrator, or one with lists", answer.remark)

    def test_retries_and_traces(self) -> None:
        """As by commands."""
        for topic, code in (("RMQ_SYS_TRACE_TOPIC", 0), ("%RETRY%again", 0), ("%RETRY%G", 16)):
            (answer,) = self.natives(PRODUCER, PutRequest(topic=topic, bodies=(b"a",)))
            self.assertEqual("No permission" in answer.remark, bool(code), topic)

    def test_strangers(self) -> None:
        """Without the question, with an unsigned one, and with one that another key signed: nothing."""
        put = PutRequest(topic="T1", bodies=(b"a",))
        end = self.broker.store.log.end_offset
        for keys, asks in ((None, False), (None, True), (Credentials("producer", "a-wrong-secret"), True)):
            (answer,) = self.natives(keys, put, asks=asks)
            self.assertEqual(answer.code, 16)
            self.assertIn("sign its challenge when you ask for the wire version", answer.remark)
        self.assertEqual(self.broker.store.log.end_offset, end)

    def test_heard(self) -> None:
        """A request of an administrator that was heard on the network opens nothing, whatever its code."""
        put, end = PutRequest(topic="T1", bodies=(b"a",)), self.broker.store.log.end_offset
        for heard in (
            signed(heartbeat("G", "T1"), OPERATOR), signed(command(28), OPERATOR),
            signed(command(WIRE_VERSION_CODE), OPERATOR),
            signed(command(WIRE_VERSION_CODE, {CHALLENGE_FIELD: "0" * 32}), OPERATOR),
        ):
            for asks in (False, True):
                self.connect()
                if asks:
                    self.say(attrs.evolve(heard, code=CHALLENGE_CODE))
                self.assertEqual(self.say(attrs.evolve(heard, code=WIRE_VERSION_CODE)).code, 0)
                self.assertEqual([answer.code for answer in self.more(put)], [16])
        self.assertEqual(self.broker.store.log.end_offset, end)

    def test_challenges(self) -> None:
        """Each counts once, on its own connection."""
        put = PutRequest(topic="T1", bodies=(b"a",))
        (answer,) = self.natives(PRODUCER, put)
        self.assertEqual(answer.code, 0)
        self.connect()
        first = self.say(command(CHALLENGE_CODE), PRODUCER).ext_fields[CHALLENGE_FIELD]
        second = self.say(command(CHALLENGE_CODE), PRODUCER).ext_fields[CHALLENGE_FIELD]
        self.assertNotEqual(first, second)
        for challenge in (first, second):  # the first is no longer valid, and its use ends the second
            self.say(command(WIRE_VERSION_CODE, {CHALLENGE_FIELD: challenge}), PRODUCER)
            self.assertEqual([answer.code for answer in self.more(put)], [16])
        third = self.say(command(CHALLENGE_CODE), PRODUCER).ext_fields[CHALLENGE_FIELD]
        self.connect()
        self.say(command(CHALLENGE_CODE), PRODUCER)
        self.say(command(WIRE_VERSION_CODE, {CHALLENGE_FIELD: third}), PRODUCER)
        self.assertEqual([answer.code for answer in self.more(put)], [16])

    def test_waiting(self) -> None:
        """Requests that wait for messages do not outlive the rights that allowed them."""
        without = (FILE % "").replace("consumer", "ex-consumer").replace("operator", "ex-operator")
        self.assertEqual(self.answer(send_of(), PRODUCER)[0], 0)
        waiting = pull()
        fields = {**waiting.ext_fields, "queueOffset": "1", "sysFlag": "6", "suspendTimeoutMillis": "60000"}
        self.natives(OPERATOR)
        end = self.broker.store.log.end_offset
        self.assertEqual(self.more(ReadRequest(begin_offset=end, wait_ms=60_000)), [])
        reading = self.connection.transport
        transport = self.connect()
        waiting = signed(attrs.evolve(waiting, ext_fields=fields), CONSUMER)
        self.connection.dataReceived(encode_command(waiting))
        self.settle()
        self.assertEqual((transport.value(), reading.value(), len(self.broker.pulls)), (b"", b"", 1))
        self.rewrite(without)
        (answer,) = sent_commands(transport.value())
        self.assertEqual((answer.code, answer.body), (19, b""))
        self.assertIn("accounts of this broker have changed", answer.remark or "")
        (_number, read) = decode_broker_frame(reading.value())
        assert isinstance(read, ReadAnswer)
        self.assertEqual((read.code, read.records), (0, b""))
        self.assertEqual(self.say(waiting).code, 1)
        self.assertEqual((len(self.broker.pulls), self.broker.reads.waiting), (0, 0))

    def test_white_account(self) -> None:
        """Its address needs no signature, so none is asked for here, either."""
        self.connect()
        self.say(command(WIRE_VERSION_CODE, {"AccessKey": "at-home"}))
        self.assertEqual([answer.code for answer in self.more(PutRequest(topic="T1", bodies=(b"a",)))], [0])

    def test_rights_end(self) -> None:
        """An account that is taken away, or loses a right, loses it on open connections, too."""
        put = PutRequest(topic="T1", bodies=(b"a",))
        (answer,) = self.natives(PRODUCER, put)
        self.assertEqual(answer.code, 0)
        self.rewrite((FILE % "").replace("T1=PUB", "T1=SUB"))
        (answer,) = self.more(put)
        self.assertIn("No permission for topic 'T1'", answer.remark)
        self.rewrite((FILE % "").replace("producer", "former-producer"))
        (answer,) = self.more(put)
        self.assertIn("account 'producer' does not exist any more", answer.remark)

    def test_white_address_ends(self) -> None:
        """So does an address."""
        self.rewrite(FILE % "192.168.1.1")
        put = PutRequest(topic="T1", bodies=(b"a",))
        (answer,) = self.natives(None, put)
        self.assertEqual(answer.code, 0)
        self.rewrite(FILE % "")
        (answer,) = self.more(put)
        self.assertIn("needs an account by now", answer.remark)

    def test_nothing_is_left(self) -> None:
        """Of connections that ended."""
        gate = self.broker.gate
        assert gate is not None
        self.natives(PRODUCER, OffsetsRequest())
        self.say(command(CHALLENGE_CODE), PRODUCER)
        self.assertEqual((len(gate.native), len(gate.challenges)), (1, 1))
        self.connection.abort("enough")
        self.connection.connectionLost()
        self.assertEqual((len(gate.native), len(gate.challenges)), (0, 0))


#: Needs an administrator, or, without accounts, a host that may.
CHANGING = (17, 18, 25, 200, 207, 215, 222, 225, 306, 309, 316, 329, 401, 90_907)


class ChangesTests(ServiceCase):
    """A broker without accounts."""

    def codes(self, host: str, *requests: RemotingCommand) -> list[tuple[int, str]]:
        """Of the answers to requests from there, with their remarks."""
        found = []
        for request in requests:
            transport = self.connect()
            transport.peerAddr = IPv4Address("TCP", host, 4711)
            self.connection.dataReceived(encode_command(request))
            self.settle(0.2)
            answers = sent_commands(transport.value())
            found += [(one.code, one.remark or "") for one in answers if one.is_response]
            self.connection.abort("done")
        return found

    def test_every_request_is_classified(self) -> None:
        """One that no table names is a change: look at it, and add it to a table or to this list."""
        for options in ({}, {"role": "slave", "namesrv": "n:9876"}):
            self.start(**options)
            changes = [code for code in self.broker.router.codes if broker_change(command(code))]
            self.assertEqual({*changes, 90_907}, {*CHANGING})
            self.assertTrue(all(code in CHANGES for code in changes))
            self.stop(8.0)
        self.assertEqual(set(CHANGES), set(CHANGING))

    def test_from_another_machine(self) -> None:
        """Refused, with a sentence that names the option; nothing has changed."""
        self.start(changeHosts="")
        for code in CHANGING:
            request = command(code, {"topic": "T1", "action": "take-master"})
            ((code_of_answer, remark),) = self.codes("10.0.0.7", request)
            self.assertEqual(code_of_answer, 16, code)
            for part in (f"(request {code}) is a change", "10.0.0.7", "changeHosts"):
                self.assertIn(part, remark)
        self.assertEqual(self.broker.refusals.counts[17, 16], 1)
        self.stop()

    def test_from_a_host_that_may(self) -> None:
        """This machine, and those of the option."""
        self.start(changeHosts="10.0.0.0/24;fd00::7")
        requests = [command(code, {"topic": "T1", "action": "take-master"}) for code in CHANGING]
        for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.7", "::ffff:10.0.0.7", "fd00::7"):
            self.assertNotIn("is a change", "".join(remark for _, remark in self.codes(host, *requests)))
        self.assertEqual({code for code, _ in self.codes("10.0.1.7", *requests)}, {16})
        self.stop()

    def test_the_rest(self) -> None:
        """Clients and slaves work from everywhere, and topics are made by messages."""
        self.start(changeHosts="")
        self.assertEqual(self.codes("10.0.0.7", send_of(topic="T7"), heartbeat("G", "T7"))[0][0], 0)
        self.assertIn("T7", self.broker.metadata.topics.entries)
        for code in set(self.broker.router.codes) - {*CHANGING, 10, 310, 320}:
            for _, remark in self.codes("10.0.0.7", command(code)):
                self.assertNotIn("is a change", remark, code)
        self.stop()

    def test_a_decision(self) -> None:
        """Only to look at what is to be decided changes nothing."""
        for action in (None, "show"):
            self.assertEqual(broker_change(command(90_907, {} if action is None else {"action": action})), "")
        self.assertIn("slave", broker_change(command(90_907, {"action": "try-again"})))

    def test_accounts_decide(self) -> None:
        """Where there are any, the address does not count."""
        path = Path(self.mktemp())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILE % "")
        self.start(aclEnable="true", acl_file=str(path), changeHosts="")
        (reported,) = self.codes("10.0.0.7", signed(command(215, {"topic": "T9"}), OPERATOR))
        self.assertEqual(reported[0], 0)
        self.assertIn("accessKey", self.codes("127.0.0.1", command(215, {"topic": "T9"}))[0][1])
        self.stop()


class StartTests(ServiceCase):
    """Options and files at the start."""

    def test_refused(self) -> None:
        """A broker that should check, and cannot, does not start; no file of its store is made."""
        self.start(aclEnable="true", acl_file="/nowhere/plain_acl.yml")
        (reason,) = self.reasons
        self.assertIn("cannot start with access control: /nowhere/plain_acl.yml: No such file", reason)
        self.stop()
        self.start(acl_credentials_file="/nowhere/tools.yml")
        self.assertIn("/nowhere/tools.yml: No such file", self.reasons[0])
        self.stop()

    def test_options(self) -> None:
        """Half of them."""
        error = self.assertRaises(ValueError, self.make, aclEnable="true")
        self.assertIn("acl_enable=true needs acl_file", str(error))
        error = self.assertRaises(ValueError, self.make, acl_file="x.yml")
        self.assertIn("requests would not be checked", str(error))
