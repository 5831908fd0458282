"""Consume queues, and the dispatch that fills them."""
