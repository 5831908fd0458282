"""
A web application whose server forks, such as Django's under gunicorn.

    gunicorn --workers 4 --preload prefork:application
    curl --data 'an event' localhost:8000

A log that was opened before a fork refuses every call in the new process, and says so. So each process opens
its own, when it first needs one. The same function serves Celery's tasks, multiprocessing and uWSGI.
"""

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

import dledger


@functools.cache
def log() -> dledger.Log:
    """The log of this process."""
    return dledger.connect(os.environ["DLEDGER_PEERS"])


os.register_at_fork(after_in_child=log.cache_clear)


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Append the body of a POST; answer with its place. WSGI, as Django's C{get_wsgi_application()}."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        status, answer = "200 OK", f"{log().append(body).index} by process {os.getpid()}"
    except dledger.AppendFailed as error:
        status, answer = "503 Service Unavailable", f"not in the log: {error}"
    except dledger.UnknownOutcome as error:
        status, answer = "504 Gateway Timeout", f"may be in the log: read it before you try again: {error}"
    start_response(status, [("Content-Type", "text/plain")])
    return [answer.encode() + b"\n"]
