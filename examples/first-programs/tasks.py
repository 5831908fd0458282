"""
Celery: a task that appends.

    celery --app tasks worker --concurrency 2
    python -c "import tasks; tasks.append.delay('an event')"

A worker forks its processes, and each opens a log of its own: see C{prefork.py}. A task whose outcome is not
known is not tried again by itself: the log may have the entry.
"""

import os

import celery
from prefork import log

import dledger

app = celery.Celery("tasks", broker=os.environ.get("CELERY_BROKER", "amqp://"))
folder = os.environ.get("CELERY_FOLDER")
if folder:  # broker filesystem://, which needs no server
    app.conf.broker_transport_options = {"data_folder_in": folder, "data_folder_out": folder,
                                         "control_folder": f"{folder}/control"}


@app.task(autoretry_for=(dledger.AppendFailed,), max_retries=5, retry_backoff=True)
def append(event: str) -> int:
    """Append an event. @return: its index. A refused one is certainly not in the log, and is tried again."""
    return log().append(event.encode()).index
