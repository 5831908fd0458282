"""Directories that a release wrote, which every later version must open."""
