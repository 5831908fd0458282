`dledger status --json` has the version of each member whose administration can be asked.
