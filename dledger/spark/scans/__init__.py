"""A plan that drivers make, and its tasks at executors."""
