A broker answers the search for an offset by time with `boundaryType=UPPER` of RocketMQ 5.x: the last message that was stored at that time or before.
