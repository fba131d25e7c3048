"""A laboratory that injects faults into every command and compares all bytes with an undisturbed run.

`python -m tests.lab` runs every part for LAB_MINUTES; docs/reliability.md describes them. A part is a
module of this package with a function `run(deadline, seed, watcher)`. It works until `deadline`, a
value of `time.monotonic()`, adds its cases to the results with `results.record`, and reports to the
`watcher`. Everything it does follows from `seed`, so that a seed reproduces every failure.
"""
