`dledger backup` copies the committed entries of a running member, later only what is new, and verifies a backup; `dledger restore` begins a new group from one.
