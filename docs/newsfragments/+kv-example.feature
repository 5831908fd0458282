`examples/kv`: a key-value store with an HTTP face as a state machine, and the calls of the clients for one: `log.submit(command)`, `log.query(request, max_age=None)`.
