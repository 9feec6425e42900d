"""A stranger's first hour: three jobs planned by the README alone, without a GPU, and hundreds of mistakes.

jobs        the three jobs' documents, as somebody would write them
way         the commands from documents to a plan that was checked, shown and simulated; timed
ground      a small folder with every kind of document, which mistakes are made in
documents, rows, files, options, sizes   mistakes by what is wrong: drawn by seed, without end
mistakes    so many of them, of every kind
trial       one mistake in a process of its own: how it ended, what it said, what it wrote
__main__    the command
"""
