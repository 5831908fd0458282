"""Export of a log into files, without Spark and with it."""
