# -*- test-case-name: tests.spark.test_executor,tests.spark.test_cluster -*-
"""
How an object of this package arrives on a machine of a cluster, also on one that lacks the package.

Spark pickles a reader, and a machine without the package cannot load it: its error would name a module, but
neither the machine nor the remedy. So a pickle begins with a function that is pickled as code, not by its
name. It needs nothing but Python.

Rule: L{_arrive} uses builtins and its own imports alone.
"""

from __future__ import annotations

import functools
import pickle
import sys

from pyspark import cloudpickle

from dledger.spark.scans.executor import build_of_package


def _arrive(build: str, packed: bytes) -> object:
    """
    The object of L{Shipped}, on the machine where it is needed.

    @param build: L{build_of_package} of the sender.
    @raise ImportError: this Python lacks the package or one that it needs; the message names the machine.
    """
    import socket
    import sys

    try:
        from dledger.spark.scans.executor import unpack

        return unpack(build, packed)
    except ImportError as error:
        raise ImportError(
            f"the driver has dledger {build}, but {sys.executable} on machine {socket.gethostname()} cannot "
            f"import it: {error}. Install the same version there, or send it with the job (--py-files)"
        ) from error


@functools.cache
def _code() -> bytes:
    """L{_arrive} as code."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(_arrive))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


class _Arrival:
    """The function L{_arrive}, pickled as code."""

    def __call__(self, build: str, packed: bytes) -> object:
        return _arrive(build, packed)

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return pickle.loads, (_code(),)


class Shipped:
    """
    A base class of objects that Spark sends to executors: their pickles name the build of this package, and
    another build refuses them.
    """

    def shipped_state(self) -> dict[str, object]:
        """The attributes of the copy on the other machine."""
        return self.__dict__

    def __reduce__(self) -> tuple[_Arrival, tuple[str, bytes]]:
        return _Arrival(), (build_of_package(), cloudpickle.dumps((type(self), self.shipped_state())))
