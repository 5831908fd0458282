# -*- test-case-name: tests.broker.admin.test_log_acts -*-
"""The outcome of what operators ask a broker for by its pages."""

from __future__ import annotations


class NotDone(Exception):
    """What an operator wants is refused, or fails. Its text says why."""
