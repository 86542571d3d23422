"""The order of builds: estimates of their durations, and the queue from which a run or a fleet takes them."""
