With the option `clockBackMs` a batch over a RocketMQ commit log reads only the files that can hold messages of `storedFrom` to `storedBefore`.
