"""What does it mean, and did it change?"""
