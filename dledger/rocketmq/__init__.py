"""RocketMQ: brokers, the name server, and the answers that both give."""
