Options of members, brokers and name servers can be given in the environment: `DLEDGER_MEMBER__TICK_MS=20`, `DLEDGER_BROKER__...`, `DLEDGER_NAMESRV__...`.
