"""What a broker shows of itself: pages, status, entries."""
