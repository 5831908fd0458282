# -*- test-case-name: tests.admin.test_dashboard -*-
"""The page for people: one group, and one of its members, in a browser."""
