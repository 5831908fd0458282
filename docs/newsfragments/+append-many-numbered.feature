`append_many(bodies, producer=..., sequence=...)` of all clients appends many bodies with the program's own numbers, each once.
