Name servers have the metric `dledger_namesrv_request_seconds`, and a panel for it in Grafana.
