"""What a member reports of itself: counters, health, events."""
