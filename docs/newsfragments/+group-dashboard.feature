`dledger dashboard` shows the dashboard of a whole group in a browser, from its peers or administrations.
