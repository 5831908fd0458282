Brokers serve POP, so RocketMQ's clients of 5.x (gRPC) work through RocketMQ's proxy: receive, acknowledge, change the invisible time; messages in order are refused.
