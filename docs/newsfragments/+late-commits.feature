`reader.commit(wait=False)` of a named reader returns at once: one commit a second has all that was done since, and `close()` the last of it.
