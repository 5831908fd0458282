"""The requests that a member answers: appends, reads, readers, state machines."""
