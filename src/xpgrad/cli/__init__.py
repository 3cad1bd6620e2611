"""The commands of ``python -m xpgrad``: each module offers ``add_arguments(parser)`` and ``run(args)``."""
