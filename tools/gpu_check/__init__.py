"""tools/gpu-check: a folder for a machine with a GPU, and what is run there."""
