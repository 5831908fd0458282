"""Parts of simulated brokers and of their clients."""
