`dledger.aio.connect()`: the client for asyncio and uvloop, without a thread or a second reactor.
