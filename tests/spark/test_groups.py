# -*- test-case-name: tests.spark.test_groups -*-
"""Several groups in one query, and their lags: the recipes of docs/spark-reference.md as they stand."""

from __future__ import annotations

import os
import textwrap
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from dledger.spark.lag import GroupLag, LagListener, lag_of
from tests.spark.sessions import SparkCase, patiently, rows_of
from tests.spark.test_docs import TEXT


def recipe(heading: str, number: int = 0) -> str:
    """A block of code after a heading; C{number} counts from 0."""
    block = TEXT[TEXT.index(f"\n{heading}\n") :]
    for _ in range(number + 1):
        block = block[block.index("\n\n    ") + 2 :]
    lines = []
    for line in block.splitlines():
        if line and not line.startswith("    "):
            break
        lines.append(line)
    return textwrap.dedent("\n".join(lines))


class GroupTests(SparkCase):
    """Two logs."""

    def setUp(self) -> None:
        super().setUp()
        self.other = self.make()
        self.ledger.fill(60)
        self.other.fill(40, seed=2)
        self.ledger.commit()
        self.other.commit(29)
        self.out = os.path.abspath(self.mktemp())
        self.checkpoint = os.path.abspath(self.mktemp())

    def union(self) -> dict[str, Any]:
        """The rows of the recipe."""
        names: dict[str, Any] = {
            "spark": self.spark, "orders": self.ledger.path, "payments": self.other.path}
        exec(recipe("### Several groups"), names)  # noqa: S102
        return names

    def run_query(self, stream: DataFrame) -> StreamingQuery:
        """To the end of what there is, into files."""
        return patiently(lambda: self.run_once(stream))

    def run_once(self, stream: DataFrame) -> StreamingQuery:
        """As L{run_query}, once."""
        query = (
            stream.writeStream.format("parquet").option("path", self.out)
            .option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        )
        try:
            self.assertTrue(query.awaitTermination(240))
        finally:
            query.stop()
        return query

    def test_several(self) -> None:
        """
        Every row once, with the name of its group, over a restart; each group has its lag. The groups of a
        checkpoint stay: another order and one fewer are errors, and nothing is read.
        """
        names = self.union()
        query = self.run_query(names["stream"])
        none_left = [GroupLag("orders", entries=0, bytes=0), GroupLag("payments", entries=0, bytes=0)]
        self.assertEqual(lag_of(query.lastProgress), none_left)
        self.other.commit()
        query = self.run_query(names["stream"])
        self.assertEqual(lag_of(query.lastProgress), none_left)
        self.check_lag_recipe(query)
        found = [row[:2] for row in rows_of(self.spark.read.parquet(self.out), "group", "index")]
        wanted = [*(("orders", index) for index in range(60)),
                  *(("payments", index) for index in range(40))]
        self.assertEqual(found, wanted)
        orders, payments = names["groups"]
        for count in (1, 2):
            self.ledger.fill(count, seed=9)
        self.ledger.commit()
        error = self.assertRaises(StreamingQueryException, self.run_query, payments.union(orders))
        self.assertIn("the checkpoint is of group 'orders', option group is 'payments'", str(error))
        for stream, count in ((orders, 1), (names["stream"].union(orders), 3)):
            error = self.assertRaises(StreamingQueryException, self.run_query, stream)
            self.assertIn(f"[2] sources in the checkpoint offsets and now there are [{count}]", str(error))
        self.assertEqual(self.spark.read.parquet(self.out).count(), 100)

    def check_lag_recipe(self, query: StreamingQuery) -> None:
        """It prints the list, and adds a listener."""
        said = StringIO()
        added: list[LagListener] = []

        class Streams:
            """The manager of queries, which notes what is added."""

            addListener = staticmethod(added.append)

        class Session:
            """In place of the session."""

            streams = Streams

        with redirect_stdout(said):
            exec(recipe("### The lag of a stream"), {"query": query, "spark": Session})  # noqa: S102
        self.assertEqual(said.getvalue().strip(), str(lag_of(query.lastProgress)))
        self.assertEqual([type(one) for one in added], [LagListener])
