"""Requests that put messages."""
