"""An exhaustive search through the states of a small group of real cores."""
