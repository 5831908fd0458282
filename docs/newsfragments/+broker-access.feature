Brokers have access control: `aclEnable` and `aclFile` take RocketMQ's accounts (`plain_acl.yml`), for its clients as they are, and for ours (`--broker-credentials`, `Credentials`).
