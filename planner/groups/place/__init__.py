"""Where does a job go that arrives among running groups: best fit, and the published placers."""
