Messages of errors, of the log and of commands say what a value is not, what is allowed, and what reports, names or shows it, in plain English.
