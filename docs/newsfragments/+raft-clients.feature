`python -m dledger.testing.raft_brokers --clients` plays the clients of masters and slaves against groups on raft logs; the pairs have up to three slaves, and files that grow old.
