A directory records its group and member id in `identity`; a start as another group or member is refused. New files have mode 0640, new directories 0750. Slow fsyncs are logged.
