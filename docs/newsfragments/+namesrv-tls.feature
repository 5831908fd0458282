The name server takes connections by TLS on its port (`tls_mode`, `tls_client_auth`), as brokers do, also with `--with-namesrv`; its certificate is reloaded, and its end is a metric.
