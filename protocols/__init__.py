"""Wire formats and Twisted protocols of the replicated log. Knows nothing of storage or raft."""
