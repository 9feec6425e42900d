"""Builders of what ships in profiles/library, from public measurements; not installed with the package.

build_library, build_tables   the commands: profiles and prices; lengths and reward seconds
carried                       factors of GPUs and models without measurements
served_fit                    served points, and the decode law fitted to them
train_file, transfers_and_prices, published_lengths   other public measurements
"""
