`python -m tests.fuzz.run` damages frames, JSON bodies, records and directories, and repeats what it found by seed and number.
Appends of one entry and of large bodies are faster: output goes to the socket at once, freed memory is kept, the client sends smaller frames.
A port that accepts connections and never answers is tried no more often than one that refuses them.
The frames of pushes and of their answers are read and written in fewer steps: one append at a time takes less.
