# -*- test-case-name: tests.hostile.test_soak -*-
"""
The faults of a member's disk that need no file system of their own, and a wall clock that is wrong: a library
that the member preloads.

It is built at run time; without a C compiler the soak goes on without these faults.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

#: As of C{struct control} in shim.c, without its path.
_FIELDS = struct.Struct("=7i4xqqq")
_PATH_BYTES = 400
SIZE = _FIELDS.size + _PATH_BYTES
SOURCE = Path(__file__).with_name("shim.c")


def build_shim(directory: Path) -> Path | None:
    """The library; None without a compiler that makes one."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    target = directory / "shim.so"
    done = subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl"],
        capture_output=True, text=True,
    )
    return target if done.returncode == 0 else None


class Shim:
    """The faults of one member."""

    def __init__(self, library: Path, path: Path, under: Path) -> None:
        """@param path: of the file with the orders for the member. @param under: its ledger."""
        self.environment = {
            "LD_PRELOAD": str(library), "DLEDGER_SHIM": str(path), "DLEDGER_SHIM_UNDER": f"{under}/",
        }
        path.write_bytes(bytes(SIZE))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)

    def arm(
        self, *, read_errno: int = 0, read_us: int = 0, write_errno: int = 0, sync_errno: int = 0,
        sync_us: int = 0, rename_errno: int = 0, clock_s: int = 0, bad: tuple[Path, int, int] | None = None,
    ) -> None:
        """
        These faults from now on, and no others.

        @param clock_s: seconds by which the wall clock is ahead.
        @param bad: a file, and the bounds of a block of it that cannot be read until it is written.
        """
        path, start, end = ("", 0, 0) if bad is None else (str(bad[0]), bad[1], bad[2])
        self._map[_FIELDS.size :] = path.encode().ljust(_PATH_BYTES, b"\0")
        self._map[: _FIELDS.size] = _FIELDS.pack(
            1, read_errno, read_us, write_errno, sync_errno, sync_us, rename_errno, start, end, clock_s
        )

    def disarm(self) -> None:
        """No fault."""
        self._map[: _FIELDS.size] = bytes(_FIELDS.size)

    @property
    def has_bad_block(self) -> bool:
        """Whether the bad block has not been written yet."""
        return bool(_FIELDS.unpack(self._map[: _FIELDS.size])[8])
