"""The ground floor of both products: values, waiting, threads, listening."""
