A running group of our members changes its members: `dledger member list|add|promote|remove|replace|move`; a new member starts with `join=true`.
