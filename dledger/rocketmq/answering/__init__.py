"""Remoting commands as any server of RocketMQ's protocol answers them: fields, refusals, documents."""
