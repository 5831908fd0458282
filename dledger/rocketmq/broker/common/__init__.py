"""The base of the broker's rooms: configuration, refusals, groups."""
