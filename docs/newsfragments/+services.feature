`deploy/` has units for systemd, a `Containerfile`, and a `compose.yaml` with a group of three; the source distribution has documents, tests and `deploy/`.
