"""Random and damaged bytes for all code that reads bytes. See C{python -m tests.fuzz.run --help}."""
