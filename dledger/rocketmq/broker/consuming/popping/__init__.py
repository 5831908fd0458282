"""POP: messages that are given to a consumer for a time, and delivered again unless it acknowledges them."""
