`append` and `put` take `bytearray` and `memoryview`, too; a copy is made at once.
