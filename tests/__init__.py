"""Tests."""

import os

from hypothesis import HealthCheck, settings

# How fast a machine draws values, or runs an example, is no property of the code under test.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Contexts of the person who runs the tests are not meant, here and in children.
os.environ["DLEDGER_CONTEXTS"] = ""
