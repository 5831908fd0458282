A member that does not know the state of the group says so in its log.
