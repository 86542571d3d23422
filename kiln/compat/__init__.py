"""Which versions fit together: TensorFlow, Serving, Python, compilers, Bazel, CUDA, cuDNN, drivers and GPUs.

The facts are rows of the tables in ``data/``, each with its source; the rules are small functions that return values.
``judge_combination`` judges a combination, ``failure_patterns`` reads the log of a failed program, ``machine_facts``
inspects this machine. Standard library only, so that it runs where nothing is installed yet.
"""
