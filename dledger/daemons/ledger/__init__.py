"""The daemon of a member."""
