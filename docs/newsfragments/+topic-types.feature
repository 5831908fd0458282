Topics may have the types ``FIFO``, ``DELAY``, ``TRANSACTION``, ``UNSPECIFIED`` and, with ``enableMixedMessageType=true``, ``MIXED``; lists of topics and groups (requests 18 and 225) are taken.
