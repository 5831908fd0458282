# -*- test-case-name: tests.client.test_top_level -*-
"""The names that programs import, at run time and for type checkers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
import dledger.rocketmq.client
from tests.import_graph import ROOT

#: A program with one mistake on each line that ends with C{# code}.
MISTAKEN = '''
from collections.abc import Iterator

import dledger
import dledger
from dledger import Entry, Log
from dledger.client.client import LogClient
from dledger.rocketmq.client import Broker, PutUnknown
from protocols.wire.ledger.messages import AppendRequest


def planted(
    log: Log, entry: Entry, broker: Broker, request: AppendRequest, client: LogClient
) -> Iterator[str]:
    request.term = 1  # misc
    entry.body = b"x"  # misc
    log.appendd(b"x")  # attr-defined
    log.append("x")  # arg-type
    log.get("0")  # arg-type
    yield entry.body  # misc
    yield str(entry.offset)  # attr-defined
    index: str = log.append(b"x").index  # assignment
    for body in log.tail(0):
        body.decode()  # attr-defined
    dledger.connect(7)  # arg-type
    dledger.connect("n0-h:1", time_out=3.0)  # call-arg
    dledger.conect("n0-h:1")  # attr-defined
    dledger.connect("n0-h:1").foo  # attr-defined
    log.append(b"x", headers={"type": "order"})  # dict-item
    log.append(b"x", headers=[("type", b"order")])  # arg-type
    log.append_many([b"x"], header={"type": b"order"})  # call-arg
    dledger.connect("n0-h:1", envelope="yes")  # arg-type
    age: int = entry.timestamp  # assignment
    kind: str = entry.headers["type"]  # assignment
    entry.headers["type"] = b"order"  # index
    client.append(b"x", headers=7)  # arg-type
    late = dledger.AsyncLog("n0-h:1").append(b"x", headers={b"type": b"order"})  # dict-item
    LogClient(7, reactor=client._clock)  # arg-type
    client.append("x")  # arg-type
    dledger.NotLeader("x")  # arg-type
    broker.put(b"topic", b"x")  # arg-type
    broker.put("topic", b"x").index  # attr-defined
    PutUnknown(1)  # arg-type
'''

CORRECT = '''
from collections.abc import Iterator

import dledger
import dledger.rocketmq.client as client
from dledger import AppendError, AppendFailed, DLedgerError, ResponseCode, UnknownOutcome


def append(peers: str) -> Iterator[bytes]:
    with dledger.connect(peers, group="g", timeout=3.0, wire="binary") as log:
        try:
            summary: dledger.AppendSummary = log.append_many([b"a", b"b"], window=2)
            index: int = log.append(b"x", headers={"type": b"order"}).index + summary.index_of(0)
        except AppendFailed as error:
            runs: tuple[dledger.Appended, ...] = error.appended
        except UnknownOutcome as error:
            unknown: int = error.unknown
        except (AppendError, DLedgerError) as error:
            assert error.code is ResponseCode.TIMEOUT
        try:
            log.get(index)
        except (dledger.NotLeader, dledger.Timeout, dledger.Expired, dledger.NotYet) as failure:
            code: ResponseCode = failure.code
        except dledger.UnknownOutcome as error:
            unknown = error.unknown
        except dledger.AppendFailed as error:
            unknown = error.failed
        for entry in log.tail(index, follow=True, timeout=1.0):
            yield entry.headers.get("type", b"") if entry.timestamp is not None else entry.body
        member: dledger.MemberInfo = log.metadata()
        yield member.address.encode()


def put(address: str) -> str:
    with client.Broker(address, limits=client.PutLimits()) as broker:
        try:
            return broker.put("topic", b"x", properties={"TAGS": "a"}).status
        except client.PutUnknown as error:
            return error.code.name
'''


class TopLevelTests(SynchronousTestCase):
    """What C{dledger} and C{dledger.rocketmq.client} export."""

    def test_every_exported_name_exists(self) -> None:
        """Every name is there, is listed, and is a class or a function of this project."""
        for module in (dledger, dledger.rocketmq.client):
            for name in module.__all__:
                value = getattr(module, name)
                self.assertIn(name, dir(module))
                self.assertTrue(callable(value), name)
                self.assertRegex(value.__module__, "^(dledger|protocols)[.]")
        self.assertRaises(AttributeError, getattr, dledger, "conect")

    def test_twisted_is_loaded_late(self) -> None:
        """Twisted is loaded by the first name that needs it, not before; the version when it is asked for."""
        code = (
            "import sys, dledger; "
            "dledger.DLedgerError; before = 'twisted' in sys.modules; "
            "from dledger import *; print(before, 'twisted' in sys.modules, connect.__module__); "
            "before = 'importlib.metadata' in sys.modules; "
            "print(before, type(dledger.__version__) is str, '__version__' in vars(dledger))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        self.assertEqual((done.stdout.strip(), done.stderr),
                         ("False True dledger.client.blocking\nFalse True True", ""))

    def test_mypy_finds_planted_mistakes(self) -> None:
        """mypy finds every planted mistake, and none in a correct program."""
        programs = Path(self.mktemp())
        programs.mkdir()
        for name, text in (("mistaken", MISTAKEN), ("correct", CORRECT)):
            (programs / f"{name}.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
             *(str((programs / f"{name}.py").resolve()) for name in ("mistaken", "correct"))],
            cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
        )
        planted = {(number, code[1]) for number, line in enumerate(MISTAKEN.splitlines(), 1)
                   if (code := re.search("# ([a-z-]+)$", line))}
        found = {(match["file"], int(match["line"]), match["code"]) for match in re.finditer(
            r"(?P<file>\w+)[.]py:(?P<line>\d+): error: .*\[(?P<code>[a-z-]+)\]$", done.stdout, re.MULTILINE
        )}
        self.assertEqual(found, {("mistaken", *one) for one in planted}, done.stdout + done.stderr)
        self.assertGreater(len(planted), 10)
