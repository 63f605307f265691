"""A SIMULATED prefill/decode deployment on loopback: real HTTP processes, simulated engine steps, known truth.

Nothing here imports the rest of pdbench: an instrument must not grade itself with its own formulas.
"""
