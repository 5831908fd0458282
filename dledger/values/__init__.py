"""Plain values and rules of both products, without input, output, clocks or threads."""
