"""The aims with which figures are compared."""

BYTES_PER_ELEMENT = 24  # a selection reads gradient and residual, a commit reads and writes both
TIMES_TOPK = 5
TIMES_MEMORY = 2
SELF_TEST = 0.1  # seconds that it may add to the first call on a device
