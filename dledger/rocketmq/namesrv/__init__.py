"""A name server of RocketMQ: brokers register with it, clients ask it for the brokers of a topic."""
