"""The demos of ``python -m xpgrad demo``: each module offers ``run(args)``."""
