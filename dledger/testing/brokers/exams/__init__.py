"""What a healthy group of brokers must answer, exactly and in time."""
