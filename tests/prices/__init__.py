"""What each request costs, beside its price."""
