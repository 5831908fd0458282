Appends exactly once: ``dledger.connect(peers, exactly_once=True)``, or ``log.append(body, producer="loader", sequence=17)``: what is repeated after an unknown outcome is in the log once.
