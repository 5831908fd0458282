"""Records of the commit log: their bytes, their checks, and the store's options."""
