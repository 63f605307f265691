"""What does this machine's wiring allow between two GPUs, and out of the machine?"""
