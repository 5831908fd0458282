"""The process: reactor, threads, clocks, file descriptors, log lines."""
