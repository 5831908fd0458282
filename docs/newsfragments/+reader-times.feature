Named readers begin and move to a time, to `"begin"` or `"end"`; `find_time` of every client finds the index of a time.
