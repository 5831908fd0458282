# -*- test-case-name: tests.spark.test_executor,tests.spark.test_cluster -*-
"""
What must be the same on the driver and on the machines of its executors: this package.

A reader is pickled with the build of the package that planned it. An executor compares the build with its
own before it looks at the rest, which another version could misread. A build is a hash of the sources of
C{dledger.spark}: an installed package and an archive of C{--py-files} may tell their versions differently,
and two states of a source tree have the same version.

Errors of a task name the machine: its directory and its package are not those of the driver.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import socket
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

import pyarrow as pa

from dledger.spark.log import LogPart, ReadError
from dledger.spark.scan import Scan

_BUILD_DIGITS = 12


class BuildMismatch(ReadError):
    """Driver and executor have different versions of this package."""


@functools.cache
def build_of_package() -> str:
    """
    The build of C{dledger.spark} in this process, as C{0.1.0 (sources 0123456789ab)}; reads the sources once,
    from a directory or an archive.
    """
    digest = hashlib.sha256()
    for file in sorted(files("dledger.spark").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    try:
        number = version("dledger")
    except PackageNotFoundError:
        number = "not installed"
    return f"{number} (sources {digest.hexdigest()[:_BUILD_DIGITS]})"


def _sources(build: str) -> str:
    return build.rpartition("(")[2]


def unpack(build: str, packed: bytes) -> object:
    """
    The object of L{pack}.

    @raise BuildMismatch: it was packed by another build of this package.
    """
    own = build_of_package()
    if _sources(build) != _sources(own):
        raise BuildMismatch(
            f"the driver has dledger {build}, but the executor on machine {socket.gethostname()} has dledger "
            f"{own}: install the same version on both, or ship it with the job (--py-files)"
        )
    return pickle.loads(packed)


def pack(value: object) -> tuple[str, bytes]:
    """The arguments for L{unpack} in another process."""
    return build_of_package(), pickle.dumps(value)


def batches_in_task(scan: Scan, part: LogPart) -> Iterator[pa.RecordBatch]:
    """
    The rows of a part, as L{Scan.batches}.

    @raise ReadError: of the same kind, with the name of this machine.
    """
    try:
        yield from scan.batches(part)
    except ReadError as error:
        raise type(error)(f"on machine {socket.gethostname()}: {error}") from error
