`dledger ha-resolve` shows why a slave's replication has stopped, and lets it follow its master (`--take-master`, the old files are kept) or compare again (`--try-again`).
