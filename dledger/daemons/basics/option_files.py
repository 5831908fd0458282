# -*- test-case-name: tests.twistd.test_rereading -*-
"""Reads files with options."""

from __future__ import annotations

import errno
import os
import stat

#: Bytes of a file, at most.
FILE_BYTES_MAX = 4 * 1024 * 1024


def read_options_file(path: str) -> bytes:
    """
    The content of a file. What is no file is not opened: a pipe without a writer would block for ever, and
    cannot be read again at SIGHUP.

    @raise OSError: it is not there, cannot be read, is no file, or is too large.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        reason = "it is a directory" if os.path.isdir(path) else "it is a pipe or a device; give a file"
        raise OSError(errno.EINVAL, reason)
    with open(path, "rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"it has more than {FILE_BYTES_MAX} bytes")
    return content
