`twistd dledger-namesrv` is a name server for brokers, clients and `mqadmin` of RocketMQ 4.9 and 5.x, and for ours; `twistd dledger-broker --with-namesrv` runs one beside a broker.
