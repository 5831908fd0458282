"""
Ledgers in Apache Spark: C{spark.read.format("dledger")}, and export without Spark.

L{session} gives a ready local session. Importing this package imports neither PySpark nor Arrow.
"""

from dledger.spark.session import session as session
