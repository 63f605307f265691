"""Many runs in time order: when did something change, in which cell, between which runs, and does capacity drift?"""
