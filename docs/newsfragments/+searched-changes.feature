The exhaustive search visits changes of the members of a group (`python -m dledger.testing.search --changes 2`): the real core with three members, removals, additions and promotions.
