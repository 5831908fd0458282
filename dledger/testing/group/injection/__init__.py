"""Faults that schedules draw: damage, lies, strangers, misfortunes."""
