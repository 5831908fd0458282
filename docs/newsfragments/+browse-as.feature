The pages of entries and messages show bodies in hexadecimal or as JSON on request: `as=hex`, `as=json`.
