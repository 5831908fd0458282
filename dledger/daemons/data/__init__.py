"""The daemon that exports a log."""
