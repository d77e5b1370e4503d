"""From a recorded graph to a native program: canonicalize, fuse, plan, lower, schedule, build."""
