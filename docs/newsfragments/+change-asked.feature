The log of a leader warns of each change of the members that is asked for, with the address that asked (`change-asked`).
