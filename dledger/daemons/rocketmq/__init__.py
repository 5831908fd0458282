"""The daemons of a broker and of a name server."""
