RocketMQ's store, file for file: commit log, consume queues, checkpoint and abort files, opened after RocketMQ and before it, with a mark of our own that says how far the log is good.
RocketMQ's metadata (topics, subscription groups, offsets of consumers and delay levels, request modes): the same JSON files, replaced atomically, and the answers that slaves of 4.9 and 5.x take.
SlaveSynchronize: a slave copies its master's metadata every ten seconds, item by item, from RocketMQ 4.9 and 5.x or from us; RocketMQ's commands in both directions on one connection.
Master/slave replication of the commit log, wire-compatible with RocketMQ 4.9 and 5.x brokers: `ASYNC_MASTER`, `SYNC_MASTER` (any slave, or in-sync replicas) and `SLAVE`; see docs/ha.md.
Brokers register with name servers (RocketMQ 4.9 and 5.x): regularly, when topics change, and again as soon as a connection was lost; slaves learn their master there.
Consumers: PULL_MESSAGE with tag filters and long polling, heartbeats, members of groups and their notification; at masters and slaves.
What mqadmin asks brokers: topics and groups made, changed and deleted, options, runtime table, replication (haStatus), statistics of topics and groups, offsets reset to a time.
A broker: `twistd -n dledger-broker` is an asynchronous or synchronous master, or a slave, for RocketMQ's producers, consumers and brokers; it takes SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, makes topics on first use, and reads configuration files of RocketMQ's brokers.
`dledger ha-status`: replication between RocketMQ brokers, Java's (5.x, and 4.9 as far as it tells) or ours, in the shape of mqadmin haStatus and as JSON.
A producer and a reader of our own for brokers (`dledger.broker.client.blocking`): many messages in a frame, with refusals and unknown outcomes told apart; whole records of the log in order, over restarts of the broker.
`dledger tail --broker host:port` shows the messages in a broker's log in its order, of a master or a slave, ours or RocketMQ's; `--topic`, `--from-offset`, `-f`, `--json`.
Delayed messages (18 levels, as RocketMQ's), messages that consumers send back (retries with growing delay, dead letters), locks of queues for orderly consumers.
Played with RocketMQ 4.9.8 and 5.3.3 in `tox -e interop`: our slave of a Java master and a Java slave of our master, in asynchronous and synchronous mode, through SIGKILL of either, consumers at the slave, and an exchange of directories; see docs/interop.md.
Benchmark of replication (`python -m benchmarks.ha`): RocketMQ 4.9.8 and ours with asynchronous and synchronous slaves, and how fast an empty slave catches up beside a bare copy. A slave copies a log several times as fast as before, and does not wait for its consume queues meanwhile.
Sends of Java's producers are read, stored and answered by what they have in common: some 14 µs of processor time each, from reading to consume queue.
A synchronous master sends a slave what was appended in the same call, makes the answers while the slave writes, and fills the consume queues after that (within 2 ms).
Consume queues are written twice a second, all together, instead of after each turn of the dispatch; what waits can be read meanwhile.
`dledger ha-status --broker` asks a broker what it is called (JSON: cluster, broker_name, broker_id), so that masters and slaves of 4.9 that are named by address are compared, too.
