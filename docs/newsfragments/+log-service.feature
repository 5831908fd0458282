``dledger.deferred.LogService`` is the log as a service of a Twisted application; ``examples/first-programs`` has a program for each face.
