`dledger completion` for bash, zsh and fish, and `dledger help`.
