One account, or without accounts one address, takes at most half of the room that a group has for producers: one client with new ids shuts nobody else out. Its own new ids are answered SHARE_FULL (454).
A client that submits commands is one producer in place of up to 256, its commands are applied in the order of the calls, and up to 16 of them are under way at once.
