The simulator has named readers: leases, commits, shares, moved and forgotten readers, checked with a second fold of the log.
