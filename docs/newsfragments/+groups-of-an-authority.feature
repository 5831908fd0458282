Several groups may have one authority: `dledger certs --group` makes certificates of members and clients that count in the named groups only.
