"""The road of a put: properties, rules, checks of topics, answers."""
