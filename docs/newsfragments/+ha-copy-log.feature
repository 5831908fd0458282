`dledger ha-resolve --copy-log FROM TO` gives a stopped broker the log of another one: copied, compared, and with its own files set aside.
