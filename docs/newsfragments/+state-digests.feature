Members compare the state of the group by digests in the log: one that differs from a majority reports `state-differs`, drops its state, and gets it from another member.
