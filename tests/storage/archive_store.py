# -*- test-case-name: tests.storage.test_place -*-
"""A store of fsspec whose calls fail, are torn, or end the program, when asked to."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from dledger.storage.backups.place_worker import CallWorker

#: What a fault does to the call: nothing of it happens; a part; all, but the answer is lost.
BEFORE, TORN, AFTER = "before", "torn", "after"
#: A part is written, and the store says that it was all.
SHORT = "short"


class Killed(BaseException):
    """The program ended here."""


class InThisThread(CallWorker):
    """Without a thread, so that a test with thousands of calls is quick."""

    def run(self, what: str, call: Any) -> Any:
        """The call, and nothing else."""
        return call()


class FaultyFile:
    """A file that is written. What was written is seen by others at once: the worst of stores."""

    def __init__(self, store: FaultyStore, file: MemoryFile | Upload) -> None:
        self._store = store
        self._file = file
        self.closed = False  # fsspec's files finish themselves when they are forgotten unclosed
        store.opened.append(self)

    def write(self, data: bytes) -> None:
        """All of it, or a part."""
        half = data[: len(data) // 2]
        self._store.call("write", lambda: self._file.write(data), lambda: self._file.write(half))

    def close(self) -> None:
        """Report."""
        self._store.call("close", self._file.close)
        self.closed = True

    def discard(self) -> None:
        """Report."""
        self._store.call("discard", lambda: None)


class Upload:
    """A file that a store shows when it is whole."""

    def __init__(self, store: FaultyStore, path: str) -> None:
        self._store = store
        self._path = path
        self._data = b""

    def write(self, data: bytes) -> None:
        """Keep."""
        self._data += data

    def close(self) -> None:
        """Show."""
        MemoryFileSystem._open(self._store, self._path, "wb").write(self._data)


class FaultyStore(MemoryFileSystem):
    """
    Invariant: each call is counted before it does anything.

    @ivar faults: the number of a call, to what happens to it.
    @ivar opened: every file that was written.
    @ivar kills: whether a fault ends the program, instead of an error.
    @ivar is_atomic: it shows a file when it is whole, as S3 and GCS do; else at once.
    @ivar between: the number of a call, to what another program does before it; its calls are not counted.
    """

    protocol = "faulty"
    cachable = False

    def __init__(self) -> None:
        super().__init__(global_store=False, skip_instance_cache=True)
        self.calls: list[str] = []
        self.opened: list[FaultyFile] = []
        self.faults: dict[int, str] = {}
        self.kills = False
        self.is_atomic = False
        self.between: dict[int, Callable[[], object]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.removeprefix("faulty://")))

    def call(self, name: str, whole: Callable[[], Any], part: Callable[[], Any] | None = None) -> Any:
        """Count a call, and do it as far as it goes."""
        other = self.between.pop(len(self.calls), None)
        if other is not None:
            calls, self.calls = self.calls, []
            faults, self.faults = self.faults, {}
            other()
            self.calls, self.faults = calls, faults
        fault = self.faults.get(len(self.calls))
        self.calls.append(name)
        if fault is None:
            return whole()
        if fault == AFTER:
            with contextlib.suppress(OSError):
                whole()
        elif fault in (TORN, SHORT) and part is not None:
            part()
            if fault == SHORT:
                return None
        if self.kills:
            raise Killed
        raise OSError(errno.EIO, "the store fails", name)

    def info(self, path: str, **more: Any) -> Any:
        """Counted."""
        return self.call("info", lambda: MemoryFileSystem.info(self, path, **more))

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        """Counted."""
        return self.call("ls", lambda: MemoryFileSystem.ls(self, path, detail=detail, **more))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> Any:
        """Counted."""
        return self.call("cat_file", lambda: MemoryFileSystem.cat_file(self, path, start, end, **more))

    def open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        """Counted."""
        assert mode == "wb", mode
        inside = self._strip_protocol(path)
        if self.is_atomic:
            return FaultyFile(self, self.call("open", lambda: Upload(self, inside)))
        return FaultyFile(self, self.call("open", lambda: MemoryFileSystem._open(self, inside, "wb")))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        """Counted; torn, the begin of the file replaces what was there."""
        def write(data: bytes) -> None:
            MemoryFileSystem._open(self, self._strip_protocol(path), "wb").write(data)

        def create(data: bytes) -> None:
            if mode == "create" and self._strip_protocol(path) in self.store:
                raise FileExistsError(path)
            write(data)

        self.call("pipe_file", lambda: create(value), lambda: create(value[: len(value) // 2]))

    def cp_file(self, path1: str, path2: str, **more: Any) -> None:
        """Counted."""
        def copy() -> None:
            data = MemoryFileSystem.cat_file(self, path1)
            MemoryFileSystem._open(self, self._strip_protocol(path2), "wb").write(data)

        self.call("cp_file", copy)

    def rm_file(self, path: str) -> None:
        """Counted."""
        self.call("rm_file", lambda: MemoryFileSystem.rm_file(self, path))

    def contents(self) -> dict[str, bytes]:
        """Every file."""
        return {path: file.getvalue() for path, file in self.store.items()}
