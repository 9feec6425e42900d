"""The first hour of a new user: three jobs planned by the README alone, without a GPU, and hundreds of mistakes.

newcomer_jobs      the documents of the three jobs, as a new user would write them
newcomer_commands  the commands from documents to a plan that was checked, shown and simulated; timed
sample_folder      a small folder with every kind of document, in which mistakes are made
mistake            a mistake, and the commands that read each document
document_mistakes, row_mistakes, file_mistakes, option_mistakes, size_mistakes   mistakes by subject
all_mistakes       a given number of mistakes of every kind
trial              one mistake in a process of its own: its exit code, its output, the files that it wrote
__main__           the command
"""
