"""The driver of the core: runs its effects, one at a time, in the order of the step."""
