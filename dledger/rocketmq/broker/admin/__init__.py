"""The requests of administrators: topics, options, statistics, replication status."""
