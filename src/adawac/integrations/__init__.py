"""AdaWAC inside other people's training: `lightning`, `monai`, `nnunet`. For any loop: `adawac.runs.recorder`.

Each submodule imports its library and nothing else does; import the one you need.
"""
