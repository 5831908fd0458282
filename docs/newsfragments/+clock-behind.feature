The event `clock-behind`: the clock of a leader is a minute or more behind the times of the log, which stand still until it has come there.
