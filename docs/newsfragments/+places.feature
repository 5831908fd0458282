``append_many`` tells the place of each body: ``summary.index_of(number)``, ``summary.runs``; its errors have the acknowledged ones.
