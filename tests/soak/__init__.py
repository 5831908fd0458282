"""A soak: faults of many kinds on real members, and a judgement of all answers to clients."""
