`/readyz` waits for a state machine that takes up its snapshot or is far behind.
