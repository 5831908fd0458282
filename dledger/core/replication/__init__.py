"""From an append to a commit: leader's dispatchers and follower's handler."""
