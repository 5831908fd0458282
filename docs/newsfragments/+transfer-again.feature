A client that asks a leader to hand over which has just taken over asks again until its time is over; the leader refuses it for three seconds, and the error said only `LEADER_TRANSFERRING`.
