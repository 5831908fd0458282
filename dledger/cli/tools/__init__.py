"""Commands for certificates, configuration and the shell."""
