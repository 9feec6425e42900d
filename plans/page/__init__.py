"""Plans and runs as pages: one self-contained HTML document each, which opens from a file, offline, on any screen.

    page_of_plan      a plan of one job
    page_of_groups    a plan of co-execution groups, and groups that were executed
    page_of_run       runs, with what their plans predicted
    page_of_compare   plans of one job for several clusters and values

Invariants: the same input gives the same bytes; nothing is fetched; text that comes from a user's file is escaped; what
a chart shows is also said in words under it. They import plotly, so commands import them when a page is asked for.
"""
