The pages of brokers have actions, with a token and after their effects were shown: `flush`, `resolve` for a slave whose replication has stopped, and `transfer` with a raft log.
