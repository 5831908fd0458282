The simulator runs state machines in 30 % of its schedules: commands, queries, calls that hang, refused and impossible commands, skipped entries, losses of power with `async`.
