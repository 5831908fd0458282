"""Tests of the broker's storage and metadata."""
