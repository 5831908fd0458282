Brokers speak TLS: `tls_mode` for their ports, as RocketMQ's `tls.server.mode`, `tls_enable` for a slave's connections, `Broker(..., tls=...)` and `--tls-...` for our clients.
