"""Messages into the log: producers, native frames, send-back, schedule."""
