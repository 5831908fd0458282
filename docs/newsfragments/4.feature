`dledger export` writes committed entries into Parquet files or lines of JSON, each exactly once over interruptions and restarts; `twistd dledger-export` does so beside a member, segment by segment.
