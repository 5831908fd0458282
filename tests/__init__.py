"""Tests."""

import os

from hypothesis import HealthCheck, settings

# How fast a machine draws values, or runs an example, is no property of the code under test. Two runs of a
# tree draw the same examples; DLEDGER_EXAMPLES=drawn hunts with others each time.
_SLOW = (HealthCheck.too_slow,)
settings.register_profile("fixed", deadline=None, suppress_health_check=_SLOW, derandomize=True)
settings.register_profile("drawn", deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("DLEDGER_EXAMPLES", "fixed"))

# Contexts of the person who runs the tests are not meant, here and in children.
os.environ["DLEDGER_CONTEXTS"] = ""
