"""The state that all parts of the core share, its inputs and its effects."""
