"""The member: drives the core, runs its effects, and serves its peers and clients."""
