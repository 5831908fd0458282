"""What calls return and raise."""
