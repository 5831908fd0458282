A directory records the members and a random id of its group; a start with another `--peers` is refused, and members of another group or with another list are turned away on both sides.
