"""What all commands share: options, contexts, output, errors."""
