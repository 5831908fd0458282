`machine_keep_entries` lets the log behind the older of two sound snapshots go, in whole segments, if every other member takes snapshots; off by default. `/status` says why nothing goes (`log_kept`).
