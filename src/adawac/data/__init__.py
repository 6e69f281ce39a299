"""Scans → cases → prepared store → batches.

The submodules: `cases` (what a case and a sample are), `task` (what a data set is), `sources` (readers),
`preprocessing`, `preparation`, `store`, `splits`, `views`, `loader`, `diagnosis` and `phantom`. Import what you need
from them; nothing heavy is loaded here.
"""
