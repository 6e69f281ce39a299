"""AdaWAC inside other people's training: `lightning`, `monai`, `nnunet`, and `recording` for any loop.

Each submodule imports its library and nothing else does; import the one you need.
"""
