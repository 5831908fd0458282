"""Simulated groups of brokers on raft logs."""
