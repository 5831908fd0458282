`python -m dledger.testing --within SECONDS` stops when the time is over and counts what it played. `make test` uses it, so that a slow machine keeps its promise.
