One append after the other costs all parties together 29 % fewer calls, and a client that appends so sends each without waiting for the end of the reactor's turn.
