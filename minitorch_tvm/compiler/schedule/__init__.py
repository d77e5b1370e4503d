"""Schedules: from kernels to loop nests, one folder per kind of target."""
