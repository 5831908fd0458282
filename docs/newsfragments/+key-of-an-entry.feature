`append(body, key=b"user-7")`, in all faces, and `dledger append --key`: what an entry is about. A reader has it as `entry.key`; it is the header `key`.
