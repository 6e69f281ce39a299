"""Scans → cases → prepared store → batches.

The submodules: `cases` (what a case and a sample are), `sources` (readers), `preprocessing`, `prepare`, `store`,
`splits`, `views`, `loading`, `phantom` and `diagnose`. Import what you need from them; nothing heavy is loaded here.
"""
