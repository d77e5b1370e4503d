"""The nouns: ops, nodes, graphs, kernels and programs."""
