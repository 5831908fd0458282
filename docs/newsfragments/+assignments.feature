Brokers share out queues among the consumers of a group (400), and ``mqadmin setConsumeMode`` says whether they pull or pop (401); RocketMQ's push consumers with ``clientRebalance=false`` work.
