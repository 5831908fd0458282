A group may be mixed with Java DLedger 0.3.1.2 and 0.2.7: `tox -e interop -- --rounds N` plays seeded scenarios of kills, pauses, one-way loss and transfers against real Java members and compares all files.
RocketMQ messages (records V1 and V2, IPv4 and IPv6, properties, batches) are read and written by `protocols.wire.rocketmq.message`; every field is in docs/wire-format.md.
`dledger tail`, `get` and `readfile --format rocketmq` show topic, queue, keys, tags, properties and body of the messages that RocketMQ brokers in DLedger mode append; `--json` shows every field.
The weaknesses of Java DLedger are shown beside ours, one schedule played to a real member of each kind (`tests.interop.test_weaknesses`, `tests.interop.test_weak_files`); docs/divergence.md says what a mixed group guarantees, and docs/interop.md has the operator's steps, which a test runs as they stand.
`python -m benchmarks.mixed` measures groups of Java members and ours, by who leads.
A follower of a Java leader, which pushes entry by entry, takes all pushes of one read as one write, and reads them by their shape: less than half the processor time per entry.
RocketMQ 5.3.3 and 4.9.8 brokers in DLedger mode work with a member of ours as the third, which votes and never leads; docs/interop.md has the steps.
