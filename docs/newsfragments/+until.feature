`dledger tail --until TIME`, `dledger get --at TIME`, and times such as `10m` ago.
