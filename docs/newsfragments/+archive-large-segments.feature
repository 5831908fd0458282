Spark cuts an archived segment that is larger than twice `partitionBytes`: it was one task, of 1 GiB with the defaults of members.
