A connection with `exactly_once=True` costs one entry of the log for each session, no longer one for each turn of the reactor.
