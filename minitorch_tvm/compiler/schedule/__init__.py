"""How kernels become loops, per target."""
