# -*- test-case-name: tests.twistd.test_rereading -*-
"""Where options are: their files, and which variables of the environment are none."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping

from twisted.python.usage import UsageError

from dledger.values.local_paths import check_local_path

#: A variable by which a container engine names where a service is, and the names that it makes beside it.
_PLACE = re.compile(r"(tcp|udp|sctp)://")
_BESIDE = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?|NAME)"
)


def variables_of_engines(environ: Mapping[str, str]) -> frozenset[str]:
    """
    The names of variables that a container engine has made of the names of services: C{X_PORT} with a URL of
    a transport, and those beside it. A service named C{dledger-member--x} has variables that look like ours.
    """
    services = [
        name.removesuffix("_PORT") for name, value in environ.items()
        if name.endswith("_PORT") and _PLACE.match(value)
    ]
    return frozenset(
        name for service in services for name in environ
        if name.startswith(service) and _BESIDE.fullmatch(name, len(service))
    )


#: Bytes of a file, at most.
FILE_BYTES_MAX = 4 * 1024 * 1024


def absolute_path(path: str) -> str:
    """The path of C{--config}, from the root on. @raise UsageError: it is a URL."""
    try:
        return os.path.abspath(check_local_path("--config", path))
    except ValueError as error:
        raise UsageError(str(error)) from None


def read_options_file(path: str) -> bytes:
    """
    The content of a file. Anything but a file is not opened: a pipe without a writer would block for ever,
    and cannot be read again at SIGHUP.

    @raise OSError: it is not there, cannot be read, is not a file, is empty, or is too large. An empty file
        is one that is being written, or was lost: it would give every option its default.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        reason = "it is a directory" if os.path.isdir(path) else "it is a pipe or a device; give a file"
        raise OSError(errno.EINVAL, reason)
    with open(path, "rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"it has more than {FILE_BYTES_MAX} bytes")
    if not content.strip():
        raise OSError(errno.EINVAL, "it is empty: write the options, or a comment to have the defaults")
    return content
