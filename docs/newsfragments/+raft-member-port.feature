A broker on a raft log speaks TLS at the port of its member, too (`tls_members_enable`), and takes tokens of clients there (`client_token_file`).
