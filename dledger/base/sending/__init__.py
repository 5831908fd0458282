"""What clients of both products share: queues of sends and their deadlines."""
