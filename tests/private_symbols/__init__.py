"""One test for each private name of Ray, vLLM and LMCache that the code touches. No engine, no cluster.

After an upgrade a failure here says what moved and which file of ours depends on it.
"""
