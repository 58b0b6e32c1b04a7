"""`softgen bench`: softgen, its peers and a copy of the same bytes, timed side by side in one run.

suites -> roster: peers (buffers: what all of them share) -> race (check, then time; chain:
between two copies, for `--warm`) -> record (CSV) -> plot. grid: a search over one strategy -> heat.
"""
