# -*- test-case-name: tests.remote -*-
"""Files of ours on object stores and other remote file systems, by fsspec, which need not be installed."""
