"""How the bytes of weights go from trainer ranks to whoever fills slots: routes, groups, arrivals."""
