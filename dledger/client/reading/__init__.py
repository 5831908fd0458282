"""Tails and named readers."""
