"""Attacks on running members and brokers, by programs that know no more than an address."""
