`make demo-rocketmq`: three brokers on a raft log and a name server on this machine, the master killed half-way, nothing lost; with a JDK also with RocketMQ's own clients.
