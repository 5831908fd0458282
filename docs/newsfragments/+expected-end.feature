An append may expect an end of the log (``log.append(body, expected_end=17)``): of all that expect one end, at most one commits; the others raise ``dledger.Conflict``.
