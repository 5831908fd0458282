`make mutants-random` puts random small faults into the code and says which tests notice them.
