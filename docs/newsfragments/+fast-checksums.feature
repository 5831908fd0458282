Checksums are computed by isal where it has a wheel (else by zlib): 100 bytes in a third of the time, 1 KiB in a sixth. A fresh slave copies its master's log half as fast again.
