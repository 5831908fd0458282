`constraints.txt` has the versions with which a release was tested.
