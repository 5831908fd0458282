"""What C{make demo} runs."""
