`log.tail_batches(index)` in all faces of the client: bodies and indexes of many entries at a time, without an object for each. A tail asks for its next batch while it takes the last one apart.
