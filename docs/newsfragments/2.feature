`python -m tests.fuzz.run` damages frames, JSON bodies, records and directories, and repeats what it found by seed and number.
