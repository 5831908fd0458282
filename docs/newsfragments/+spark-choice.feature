Spark, with `format=rocketmq`: the options `topics`, `tags`, `keys`, `storedFrom` and `storedBefore` choose messages before they are decoded.
