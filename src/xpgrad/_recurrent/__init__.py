"""The shared parts of recurrent operators: a call, its rows step by step, gradients after the loop."""
