`dledger group show|create|join|force-new`: begin a group, join one, or go on after a majority was lost for good.
