"""The spans of a process go to OpenTelemetry, if it is installed."""
