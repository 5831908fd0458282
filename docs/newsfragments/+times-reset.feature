`dledger times --reset` brings true times back to a log whose times are ahead; the event `times-ahead`, a metric, an alert and `/status` show it.
