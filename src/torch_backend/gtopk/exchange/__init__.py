"""How the units of a backward are exchanged."""
