# -*- test-case-name: tests.base.test_local_paths -*-
"""
Paths of this machine. Only few options that name a place take a URL; all others refuse it. The system would
take C{s3://bucket/log} for the path of a folder C{s3:}.
"""

from __future__ import annotations

import re

#: Also schemes with a hyphen, unlike L{dledger.values.addresses.is_url}: no path is a list of members.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")


def check_local_path(name: str, path: str) -> str:
    """
    @param name: of the option.
    @return: C{path}.
    @raise ValueError: it is a URL; the text says what is allowed.
    """
    if _URL.match(path) is not None:
        raise ValueError(f"{name}={path!r} is a URL, and only a path of this machine works here: write one "
                         "such as ./data or /var/lib/dledger")
    return path
