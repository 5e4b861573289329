"""`bertender tune`: which settings of `serve` are the fastest on this machine."""
