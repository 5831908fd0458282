# -*- test-case-name: tests.base.commands.test_java_json -*-
"""Documents as Java writes them."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.java_json import DataVersion, file_json, read_document, wire_json
from protocols.wire.errors import BodyError

#: consumerOffset.json of a 4.9.7 broker.
JAVA_OFFSETS = (
    b'{\n\t"offsetTable":{\n\t\t"T1@G2":{0:3,1:4,2:5\n\t\t},\n\t\t"T1@G1":{0:3,1:4,2:5\n\t\t},\n'
    b'\t\t"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:41\n\t\t}\n\t}\n}'
)
#: delayOffset.json of a 5.3.3 broker.
JAVA_DELAY = (
    b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":1795265105125\n\t},\n'
    b'\t"offsetTable":{1:18,2:22,3:22\n\t}\n}'
)


class ReadTests(SynchronousTestCase):
    """What Java wrote is read."""

    def test_bare_keys(self) -> None:
        """Of files and of answers; quotes may hold anything."""
        table = {"T1@G2": {"0": 3, "1": 4, "2": 5}, "T1@G1": {"0": 3, "1": 4, "2": 5},
                 "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 41}}
        self.assertEqual(read_document(JAVA_OFFSETS), {"offsetTable": table})
        self.assertEqual(read_document(b'{ -1 : 2,"{3:":"\\",4:","x":"","y":{5 :[]}}'),
                         {"-1": 2, "{3:": '",4:', "x": "", "y": {"5": []}})

    def test_surrogates(self) -> None:
        """Whole pairs are characters; half of one, which could not be written again, is refused."""
        self.assertEqual(read_document(b'{"a":"\\ud83d\\uDE00"}'), {"a": "\U0001f600"})
        self.assertEqual(read_document(b'{"a":"\\u005cud83d"}'), {"a": "\\ud83d"})
        for half in (b'{"a":"\\ud83d"}', b'{"\\uDE00":1}', b'{"a":[{"b":"x\\uD83Dx"}]}', b"{a:'\\ud83d'}"):
            self.assertRaises(BodyError, read_document, half)

    def test_large(self) -> None:
        """A table of a hundred thousand offsets, most of a megabyte, in Java's spelling."""
        table = ",".join(f'"T@G{group}":{{{",".join(f"{queue}:{queue * 7}" for queue in range(10))}}}'
                         for group in range(10_000))
        found = read_document(f'{{"offsetTable":{{{table}}}}}'.encode())
        self.assertEqual(len(found["offsetTable"]), 10_000)
        self.assertEqual(found["offsetTable"]["T@G9"]["9"], 63)

    def test_every_truncation(self) -> None:
        """An error, whatever is missing."""
        for size in range(len(JAVA_DELAY)):
            self.assertRaises(BodyError, read_document, JAVA_DELAY[:size])

    def test_too_large(self) -> None:
        """Refused before it is looked at."""
        error = self.assertRaises(BodyError, read_document, bytes((1 << 24) + 1))
        self.assertIn("16777217 bytes", str(error))


class WriteTests(SynchronousTestCase):
    """What we write is what Java writes, or reads."""

    def test_files(self) -> None:
        """Java's own bytes."""
        offsets = {"offsetTable": {"T1@G2": {0: 3, 1: 4, 2: 5}, "T1@G1": {0: 3, 1: 4, 2: 5},
                                   "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {0: 41}}}
        self.assertEqual(file_json(offsets), JAVA_OFFSETS)
        version = DataVersion(timestamp=1795265105125, counter=1)
        self.assertEqual(
            file_json({"dataVersion": version.document(), "offsetTable": {1: 18, 2: 22, 3: 22}}), JAVA_DELAY
        )
        self.assertEqual(file_json({"a": {}, "b": ["T1", 2], "ü": '"'}),
                         '{\n\t"a":{},\n\t"b":["T1",2],\n\t"ü":"\\""\n}'.encode())

    def test_wire(self) -> None:
        """Strict JSON: integer keys are quoted."""
        data = wire_json({"offsetTable": {1: 18, 2: 22}, "t": "größe"})
        self.assertEqual(data, '{"offsetTable":{"1":18,"2":22},"t":"größe"}'.encode())
        self.assertEqual(json.loads(data)["offsetTable"], {"1": 18, "2": 22})


    def test_fractions(self) -> None:
        """They come back as they were; beyond a double they are text, which everybody can read."""
        document = read_document(b'{"a":1.5,"b":[-2.25e3],"c":1e400}')
        self.assertEqual(wire_json(document), b'{"a":1.5,"b":[-2250.0],"c":"1E+400"}')
        self.assertEqual(file_json({"a": document["a"]}), b'{\n\t"a":1.5\n}')
        self.assertRaises(TypeError, wire_json, {"a": b""})


class DataVersionTests(SynchronousTestCase):
    """Equal is the same state; nothing else is said."""

    def test_states(self) -> None:
        """What 4.9 leaves out is 0."""
        version = DataVersion.read({"counter": 5, "timestamp": 7})
        self.assertIsNone(version.state_version)
        self.assertTrue(version.is_same(DataVersion(counter=5, timestamp=7)))
        for other in (DataVersion(counter=6, timestamp=7), DataVersion(counter=5, timestamp=8),
                      DataVersion(counter=5, timestamp=7, state_version=1)):
            self.assertFalse(version.is_same(other))
        self.assertEqual(version.following(9), DataVersion(counter=6, timestamp=9, state_version=None))
        self.assertEqual((version.document(), version.wire_document()),
                         ({"counter": 5, "timestamp": 7}, {"counter": 5, "stateVersion": 0, "timestamp": 7}))

    def test_no_version(self) -> None:
        """Null, no object, no numbers: refused."""
        for value in (None, 5, {}, {"counter": 1}, {"counter": "x", "timestamp": 1}):
            self.assertRaises(BodyError, DataVersion.read, value)
