`dledger certs` names the IP addresses in `--members` and the hosts of `--host NAME=HOST` in certificates, for browsers, Prometheus and `dledger --admin https://...`.
