`deploy/` has alert rules for Prometheus and a dashboard for Grafana.
