"""What was tried to break adawac, and what survived: the numbers of docs/reliability.md."""
