`examples/secure-group` is a group with TLS on one machine, from its keys to what is refused; a test runs its page.
