"""What recurrent operators share: a call, its rows step by step, gradients after the loop."""
