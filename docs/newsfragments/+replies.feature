Consumers may reply to requests (324, 325): the broker passes the reply on to the producer that waits.
