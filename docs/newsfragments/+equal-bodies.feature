A slave checks the bodies of records of one size together: 0.7 GB of log a second with bodies of 100 bytes instead of 0.4, 1.9 with 1 KiB instead of 1.4.
