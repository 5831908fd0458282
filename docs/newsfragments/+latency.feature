`python -m benchmarks.latency` takes one append apart, beside an epoll relay and a bare Twisted relay in the same run; `python -m benchmarks.dashboards` measures what open dashboards cost.
