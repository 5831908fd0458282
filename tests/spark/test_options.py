# -*- test-case-name: tests.spark.test_options -*-
"""Options are read strictly: each error says what was wrong and what is allowed."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import OPTIONS, ScanOptions
from dledger.spark.scans.scan import Scan


class OptionTests(SynchronousTestCase):
    """L{ScanOptions.of}."""

    def refused(self, words: str, is_stream: bool = False, **given: str) -> None:
        """The error says so."""
        error = self.assertRaises(OptionError, ScanOptions.of, {"path": "d", **given}, is_stream=is_stream)
        self.assertIn(words, str(error))

    def test_defaults(self) -> None:
        """Nothing but a place is needed."""
        options = ScanOptions.of({"path": "d"})
        self.assertEqual((options.group, options.format, options.starting), ("default", "dledger", None))
        self.assertTrue(options.fail_on_data_loss and options.fail_on_damage)

    def test_every_option_is_read_into_a_field(self) -> None:
        """The table names fields that exist, and no field is without its option."""
        fields = {option.field for option in OPTIONS}
        self.assertEqual(fields, set(ScanOptions.__slots__) - {"__weakref__", "processors"})
        self.assertEqual(len(fields), len(OPTIONS))

    def test_case_does_not_matter(self) -> None:
        """Spark keeps names as they were typed, or in lower case."""
        options = ScanOptions.of({"PATH": "d", "failondataloss": "FALSE", "MinPartitions": " 3 "})
        self.assertEqual((options.fail_on_data_loss, options.min_partitions), (False, 3))

    def test_unknown(self) -> None:
        """The nearest name is offered, and all are listed."""
        self.refused("unknown option startingOffset (did you mean startingOffsets?)", startingOffset="1")
        self.refused("did you mean bootstrap?", bootstraps="1")
        for name in ("owner", "provider"):
            self.refused("Use CREATE TEMPORARY VIEW", **{name: "root"})
        self.refused("Use CREATE TEMPORARY VIEW", **{"option.path": "/x"})
        self.refused("unknown option zzzz; known are path, dataPath,", zzzz="1")
        self.refused("several directories", paths='["a", "b"]')

    def test_options_of_kafka(self) -> None:
        """Some that cannot be had here are refused with the reason, and with what does the same."""
        for name, words in (
            ("endingTimestamp", "startingOffsets=earliest and storedBefore,"),
            ("startingOffsetsByTimestamp", "entries have no index by time, so option startingOffsetsByT"),
            ("ENDINGOFFSETSBYTIMESTAMP", "option endingOffsetsByTimestamp does not exist"),
            ("subscribe", "option subscribe does not exist: a source reads one group"),
            ("subscribePattern", "union() puts the sources of several groups into one query"),
            ("assign", "option assign does not exist"),
        ):
            with self.subTest(name=name):
                self.refused(words, **{name: "5"})
                self.refused(words, is_stream=True, format="rocketmq", **{name: "5"})

    def test_starting_timestamp(self) -> None:
        """It is for entries with times, in the place of C{startingOffsets}; messages have another option."""
        ms = {"startingTimestamp": "1767323045678"}
        self.refused("startingOffsets=earliest and storedFrom,", format="rocketmq", **ms)
        self.refused("needs times=true, for the times of leaders, or envelopes=true", **ms)
        self.refused("take one", envelopes="true", startingOffsets="7", **ms)
        self.refused("startingTimestamp: '12' is not a time: write 2026-01-31T12:00:00", envelopes="true",
                     startingTimestamp="12")
        for text in ("1767323045678", "2026-01-02T03:04:05.678"):
            options = ScanOptions.of({"path": "x", "envelopes": "true", "startingTimestamp": text})
            self.assertEqual(options.starting_timestamp, 1767323045678)

    def test_values(self) -> None:
        """What is no value of its kind is refused by name."""
        self.refused("failOnDataLoss='yes': true or false", failOnDataLoss="yes")
        self.refused("minPartitions=0 is outside 1..", minPartitions="0")
        self.refused("fetchBytes='4m' is not a whole number", fetchBytes="4m")
        self.refused("format='avro': allowed are dledger, rocketmq", format="avro")
        self.refused("group is empty", group=" ")
        for text in ("-1", "first", "1.5", "true", "[1]", '{"a": 1, "b": 2}', '{"a": "1"}', ""):
            self.refused("allowed are earliest, latest, a number from 0 on", startingOffsets=text)

    def test_what_does_not_go_together(self) -> None:
        """Modes, batch and stream, groups."""
        self.refused("both are given", bootstrap="n0-h:1")
        error = self.assertRaises(OptionError, ScanOptions.of, {})
        self.assertIn("neither is given", str(error))
        self.refused("a stream has no end", endingOffsets="5", is_stream=True)
        self.refused("are for streams", maxOffsetsPerTrigger="5")
        self.refused("is for streams", minOffsetsPerTrigger="5")
        self.refused("it needs readStream and option bootstrap", reader="etl")
        self.refused("65 bytes, 1 to 64 are allowed", reader="x" * 65)
        self.refused("a number and its unit are allowed: 5ms, 5s, 5m, 5h", maxTriggerDelay="15")
        self.refused("names group 'g1', but option group is 'default'", startingOffsets='{"g1": 5}')
        error = self.assertRaises(OptionError, ScanOptions.of, {"bootstrap": "n0-h:1", "dataPath": "d"})
        self.assertIn("dataPath belongs to path", str(error))

    def test_columns(self) -> None:
        """A schema of unknown columns or other types is refused with what there is."""
        for wanted, words in (
            ([("idx", "bigint")], "unknown column idx (did you mean index?)"),
            ([("zzzz", "bigint")], "there are `index` BIGINT, `term` BIGINT"),
            ([("index", "int")], "column index is BIGINT, not INT"),
            ([("index", "bigint"), ("INDEX", "bigint")], "named twice"), ([], "names no column"),
        ):
            with self.subTest(wanted=wanted):
                error = self.assertRaises(OptionError, Scan.of, {"path": "d"}, wanted=wanted)
                self.assertIn(words, str(error))
