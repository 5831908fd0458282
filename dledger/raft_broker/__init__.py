"""A RocketMQ broker whose commit log is the ledger of a raft group: RocketMQ's DLedger mode."""
