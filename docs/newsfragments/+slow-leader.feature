A leader whose fsyncs take 100 ms or more for a minute (`slow_flush_hand_over_ms`), ten times as long as a follower's, hands leadership to that follower.
