"""What a broker is configured with."""
