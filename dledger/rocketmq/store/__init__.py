"""The store of a broker: commit log, queues, index."""
