"""What do servers, links and GPUs say?"""
