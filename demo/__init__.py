"""The program behind C{make demo}."""
