"""tools/gpu-check: a folder for a machine with a GPU, and the checks that run there."""
