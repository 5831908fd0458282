# -*- test-case-name: tests.spark.test_columnar -*-
"""Prints the path of the extension's jar: C{spark-submit --jars $(python -m dledger.spark.jvm)}."""

from __future__ import annotations

import sys

from dledger.spark.jvm import JAR

sys.stdout.write(f"{JAR}\n")
