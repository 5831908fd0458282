"""Snapshots as files: kept, offered to other members, fetched from them."""
