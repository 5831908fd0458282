`python -m dledger.testing.crashes` looks at every state that power cuts and kills can leave of a member's files, also in the recovery, and at every single flipped bit.
