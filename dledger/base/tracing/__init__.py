"""Spans of work, for whoever shows them: what a part of the product says about its work, and its bounds."""
