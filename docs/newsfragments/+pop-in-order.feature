Consumers of 5.x pop in order (FIFO topics, groups with ``consumeMessageOrderly=true``), through RocketMQ's proxy and without; a raft log carries what they hold to the next master.
