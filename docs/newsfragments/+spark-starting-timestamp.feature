Spark: `startingTimestamp` begins a batch or a stream with the entries of a time, in logs whose entries have times (`envelopes=true`).
