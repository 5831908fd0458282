"""
A table in SQLite that has the effect of each entry exactly once, also if this program is killed at any time.

    python accounts.py accounts.sqlite

An entry says C{anna 5}: the account, and the amount for it. The index of the last entry is in the database,
and changes in the same transaction as the account, so an entry that comes again changes nothing. The place of
the reader need not be exact: it only says where to begin.
"""

import os
import sqlite3
import sys

import dledger

TABLES = """
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS done (reader TEXT PRIMARY KEY, entry INTEGER NOT NULL);
INSERT OR IGNORE INTO done VALUES ('accounts', -1);
"""


def take(database: sqlite3.Connection, entry: dledger.Entry) -> None:
    """Change the account, unless this entry has changed it already."""
    name, amount = entry.body.decode().split()
    database.execute("BEGIN IMMEDIATE")
    with database:  # commits, or rolls back
        moved = database.execute(
            "UPDATE done SET entry = ?1 WHERE reader = 'accounts' AND entry < ?1", (entry.index,)
        )
        if moved.rowcount:
            database.execute(
                "INSERT INTO accounts VALUES (?1, ?2) "
                "ON CONFLICT (name) DO UPDATE SET balance = balance + ?2", (name, int(amount)),
            )


def main(path: str) -> None:
    """Read for ever."""
    database = sqlite3.connect(path, isolation_level=None, timeout=60)
    database.executescript(TABLES)
    with dledger.connect(os.environ["DLEDGER_PEERS"]) as log, log.reader("accounts", lease_s=2) as reader:
        for entry in reader:
            take(database, entry)
            reader.commit(wait=False)


if __name__ == "__main__":
    main(sys.argv[1])
