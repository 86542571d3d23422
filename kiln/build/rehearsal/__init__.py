"""The parts of a rehearsal, which runs without a conda channel.

Python packages are made from wheels, ``python`` from an interpreter of this machine, compilers and programs from
this machine's; for TensorFlow, upstream's wheel replaces the compile.
"""
