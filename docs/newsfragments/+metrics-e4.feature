New metrics: `build_info`, `elections_total` by result, `append_duration_seconds`, `append_batch_entries`, `peer_lag_bytes`, `push_retries_total`, and those of the process.
