`expire_only_archived` lets a member delete only what an archive has, by the note of `dledger archive --note`; off by default.
