The index of keys takes a third of the time that it took with small messages.
