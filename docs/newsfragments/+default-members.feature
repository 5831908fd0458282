Commands, `dledger.connect()`, `dledger.aio.connect()` and `LogService()` without members ask the group of one that `twistd -n dledger` starts; a command says so.
