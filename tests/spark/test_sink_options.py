# -*- test-case-name: tests.spark.test_sink_options -*-
"""The options of the sink, and their list in docs/spark-reference.md."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import options_of_tls
from dledger.spark.sink.options import SINK_OPTIONS, SinkOptions
from dledger.values.tls_files import TlsFiles
from tests.spark.test_docs import options_of

MEMBERS = {"bootstrap": "n0-127.0.0.1:1"}
STREAM = {**MEMBERS, "sinkId": "orders"}


class SinkOptionTests(SynchronousTestCase):
    """What is allowed."""

    def refused(self, given: dict[str, str], said: str, *, is_stream: bool = False) -> None:
        """The options are refused with a sentence."""
        error = self.assertRaises(OptionError, SinkOptions.of, given, is_stream=is_stream)
        self.assertIn(said, str(error))

    def test_list(self) -> None:
        """The list of the documents has all of them in order, with their defaults."""
        found = options_of("## Sink")
        self.assertEqual(found, [(option.name, option.default) for option in SINK_OPTIONS])
        options = SinkOptions()
        for option in SINK_OPTIONS:
            value = getattr(options, option.field)
            if re.fullmatch(r"`\w+`", option.default):
                self.assertEqual(option.read(option.name, option.default.strip("`")), value, option.name)
            else:
                self.assertIn(value, ("", -1, ()), option.name)

    def test_names(self) -> None:
        """Names in any case; an unknown one names the nearest; Spark's own are left out of a stream."""
        found = SinkOptions.of({"BOOTSTRAP": "n0-h:1", "sinkid": "a", "checkpointLocation": "c",
                                "queryName": "q"}, is_stream=True)
        self.assertEqual((found.bootstrap, found.sink_id), ("n0-h:1", "a"))
        self.refused({**MEMBERS, "frameByte": "1"}, "unknown option frameByte (did you mean frameBytes?)")
        self.refused({**MEMBERS, "startingOffsets": "1"}, "the sink knows bootstrap, group, sinkId")
        self.refused({"path": "x"}, "option path (or save(PATH), start(PATH)) belongs to the source")
        self.refused({**MEMBERS, "checkpointLocation": "c"}, "unknown option checkpointLocation")

    def test_identity(self) -> None:
        """A stream needs a name; a job a name and a number, or neither."""
        self.refused({}, "option bootstrap is needed")
        self.refused(MEMBERS, "option sinkId is needed", is_stream=True)
        self.refused({**STREAM, "batchId": "1"}, "option batchId is for jobs", is_stream=True)
        self.refused(STREAM, "belong together")
        self.refused({**MEMBERS, "batchId": "1"}, "belong together")
        self.assertEqual(SinkOptions.of({**STREAM, "batchId": "0"}, is_stream=False).batch_id, 0)
        for text in ("", "a b", "a/b", "x" * 65):
            self.refused({**STREAM, "sinkId": text}, "1 to 64 letters, digits", is_stream=True)

    def test_numbers(self) -> None:
        """Outside their ranges, or no numbers."""
        for name, text in (("frameBytes", "0"), ("frameBytes", "8388609"), ("maxTaskBytes", "0"),
                           ("timeoutMs", "0"), ("requestTimeoutMs", "-1"), ("timeoutMs", "soon")):
            self.refused({**MEMBERS, name: text}, f"option {name}=")

    def test_tls(self) -> None:
        """As for the source."""
        files = TlsFiles(certificate="c", key="k", authority="a")
        found = SinkOptions.of({**MEMBERS, **options_of_tls(files)}, is_stream=False)
        self.assertEqual(found.tls, files)
        self.assertEqual(found.for_reading.tls, files)
        moved = found.with_paths(lambda path: f"/x/{path}")
        self.assertEqual(moved.tls, TlsFiles(certificate="/x/c", key="/x/k", authority="/x/a"))
        missing = "TLS needs three files; missing: tlsCertificate, tlsAuthority"
        self.refused({**MEMBERS, "tlsKey": "k"}, missing)
        self.refused({**MEMBERS, "tlsPlainMembers": "n1"}, "option tlsPlainMembers names the members")
