`dledger bench` appends at a steady rate and says whether the group keeps up, with the rate and the latencies.
