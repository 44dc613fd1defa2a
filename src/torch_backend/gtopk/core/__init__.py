"""The native library, groups and launchers."""
