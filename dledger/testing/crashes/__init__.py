"""Every power cut in every changing disk call of some workloads, and every flipped bit of a directory."""
