Logs: `--log-format json`, `--log-level` with levels for rooms, priorities for the journal of systemd, `dledger log-level` while members run; SIGHUP reads the options again.
