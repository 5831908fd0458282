A program in the process of a member can write positions into its own bodies, hear of commits and roles, and be the only one that appends (`dledger.node.broker_hooks`).
