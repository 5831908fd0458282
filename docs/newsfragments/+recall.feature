Producers recall messages that wait for their time (request 370, ``recallMessageEnable=true``).
