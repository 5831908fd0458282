``dledger tail`` leaves out the entries that members write for themselves; ``--control`` shows them.
