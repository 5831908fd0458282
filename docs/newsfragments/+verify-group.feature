`dledger verify --group` compares the logs of the members of a running group, and names those that hold other entries than the leader.
