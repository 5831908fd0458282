A member whose TLS certificate does not name it says so in its log, at its start and when the files change.
