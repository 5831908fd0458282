"""What servers share: addresses to listen at, clients and their limits, tokens."""
