`python -m dledger.testing.crashes cuts` also looks at every state that power cuts and kills can leave of a broker's commit log, consume queues, log mark and checkpoint.
