"""HTTP status, health and metrics of one member and of its group."""
