"""Messages for later: delay levels, timers, recalls."""
