"""What both formats share: options, the interface of a log, proofs, columns of headers."""
