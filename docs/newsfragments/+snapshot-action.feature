`POST /snapshot` and the page `actions` let the state machine of a member take a snapshot, also where none is due by entries or bytes.
