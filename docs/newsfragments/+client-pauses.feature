A client finds a new leader sooner: its pauses between two questions begin at 10 ms and grow by a quarter. While a leader hands over, a client that appends one entry at a time pauses for about 30 ms.
