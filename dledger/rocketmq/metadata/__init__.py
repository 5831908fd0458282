"""Topics, groups and offsets: tables, their files, and the copy that a slave keeps."""
