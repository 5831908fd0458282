`twistd dledger-broker --admin tcp:8090` serves a dashboard, status, health, options and metrics of a broker: rates, lag of consumer groups and slaves, refusals by code.
