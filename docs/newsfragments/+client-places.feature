A client for which a member, broker or name server has no place is answered so (code 448, or 2, with the reason) with its first request; one address gets half of the places (`connections_share`).
