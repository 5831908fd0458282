Spark and exports: `times=true` adds the column `time`, when a leader wrote an entry, and `startingTimestamp` goes by it; `envelopes=true` adds the column `key`, too.
