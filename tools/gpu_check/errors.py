"""The errors that end the program with one line."""


class UsageError(Exception):
    """Invalid arguments: exit code 2."""


class CheckError(Exception):
    """Something is missing, or has failed: exit code 1."""
