The schedules of replication play whole brokers (`python -m dledger.testing.brokers --logs`), with the machines and the faults of the schedules with clients.
