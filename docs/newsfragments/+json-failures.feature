With `--json` a command that fails writes one object with code, message and remedy on the last line of standard error; `top --json` writes a line for each look.
