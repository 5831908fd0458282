Administrators change options of a broker while it runs (``mqadmin updateBrokerConfig``); a change stays after the next start, without touching the configuration file.
