# -*- test-case-name: tests.spark.test_executor,tests.spark.test_cluster -*-
"""
What must be the same on the driver and on the machines of its executors: this package.

A reader is pickled with the build of the package that planned it. An executor compares the build with its
own before it looks at the rest, which another version could misread. A build is a hash of the sources: an
installed package and an archive of C{--py-files} may report their versions differently, and two states of a
source tree have the same version.

Errors of a task name the machine: its directory and its package are not those of the driver.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.resources.abc import Traversable

import pyarrow as pa

from dledger.spark.formats.log import LogPart, ReadError
from dledger.spark.scans.pushed import PushedScan
from dledger.spark.scans.scan import Scan

_BUILD_DIGITS = 12
#: What a task runs, below the directory of packages: a file, or a directory with all that is below it.
BUILD_PARTS = (
    "dledger/base", "dledger/spark", "dledger/storage", "dledger/values", "protocols/wire",
)


class BuildMismatch(ReadError):
    """Driver and executor have different versions of this package."""


def _sources(place: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    if place.is_dir():
        for found in sorted(place.iterdir(), key=lambda one: one.name):
            yield from _sources(found, f"{name}/{found.name}")
    elif name.endswith(".py"):
        yield name, place.read_bytes()


@functools.cache
def build_of_package() -> str:
    """
    The build of this package in this process, as C{0.1.0 (sources 0123456789ab)}. Reads the sources once, in
    some ten milliseconds, from a directory or an archive.
    """
    digest = hashlib.sha256()
    for part in BUILD_PARTS:
        top, _, below = part.partition("/")
        for name, source in _sources(files(top) / below, part):
            digest.update(name.encode() + b"\0" + hashlib.sha256(source).digest())
    try:
        number = version("dledger")
    except PackageNotFoundError:
        number = "not installed"
    return f"{number} (sources {digest.hexdigest()[:_BUILD_DIGITS]})"


def unpack(build: str, packed: bytes) -> object:
    """
    An object that another process packed.

    @param build: L{build_of_package} of that process.
    @param packed: its class and its attributes, pickled.
    @raise BuildMismatch: this process has another build.
    """
    own = build_of_package()
    # An archive has no number of a version, so the sources alone are compared.
    if build.rpartition("(")[2] != own.rpartition("(")[2]:
        raise BuildMismatch(
            f"the driver has dledger {build}, but {sys.executable} on machine {socket.gethostname()} has "
            f"dledger {own}: install the same version there, or send it with the job (--py-files)"
        )
    kind, state = pickle.loads(packed)
    found: object = kind.__new__(kind)
    found.__dict__.update(state)
    return found


def batches_in_task(scan: Scan | PushedScan, part: LogPart) -> Iterator[pa.RecordBatch]:
    """
    The rows of a part, as L{Scan.batches} or L{PushedScan.batches}.

    @raise ReadError: of the same kind, with the name of this machine.
    """
    try:
        yield from scan.batches(part)
    except ReadError as error:
        raise type(error)(f"on machine {socket.gethostname()}: {error}") from error
