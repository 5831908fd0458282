The version of the package is looked up when it is asked for: members and commands start 5 % sooner.
