Spark, `dledger export` and `twistd dledger-export` read from members by TLS: options `tlsCertificate`, `tlsKey`, `tlsAuthority`, `tlsPlainMembers`.
