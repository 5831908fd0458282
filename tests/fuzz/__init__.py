"""Random and damaged bytes to everything that reads bytes. See C{python -m tests.fuzz.run --help}."""
