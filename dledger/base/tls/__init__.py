"""TLS: keys and certificates. Only L{securing} is imported where the packages for TLS may be missing."""
