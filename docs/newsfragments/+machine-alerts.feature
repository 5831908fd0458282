Alert rules for a state machine that has stopped and for snapshots that fail, and `benchmarks/programs.py`.
