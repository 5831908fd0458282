# -*- test-case-name: tests.admin.test_browsing -*-
"""Pages that show what is stored: the entries of a member, and the messages of a broker."""
