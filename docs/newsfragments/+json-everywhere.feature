Every command that tells facts takes `--json`: `transfer`, `version`, `readfile`, `readers move`, `readers forget`, `machine skip` and `group create`, `join` and `force-new`, too.
