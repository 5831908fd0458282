A turn of the reactor spends 4 ms on requests of clients instead of 10: beside a flood, others wait half as long.
