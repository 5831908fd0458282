"""Tests of the Spark source, of export and of what is around them."""
