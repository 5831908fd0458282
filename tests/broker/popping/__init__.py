"""Tests of transactions."""
