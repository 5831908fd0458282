"""The command line C{dledger}."""
