A member is configured by a frozen, validated `DLedgerConfig`; names are accepted in our, Java's and RocketMQ's spelling.
