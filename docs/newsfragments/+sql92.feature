Consumers may filter by expressions of SQL 92 over the properties of messages (``enablePropertyFilter=true``), with RocketMQ's grammar and results.
