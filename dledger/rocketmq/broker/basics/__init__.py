"""What all rooms of a broker know: its role, and the events of its log."""
