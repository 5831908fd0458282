"""The services of C{twistd}: a member, a broker, an export."""
