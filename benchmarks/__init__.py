"""Measurements on real processes. Each program takes C{--quick} and C{--json FILE}."""
