"""The sandbox of `code` rewards: a response runs in one process, the row's tests in another that it cannot touch.

| process | module | runs | started by |
|---|---|---|---|
| worker | `warm_sandbox` | nothing of responses or tests; keeps the deadline | Ray |
| starter | `starter` | nothing of responses or tests; warm and isolated, it forks a tester for each sample | worker |
| tester | `tester` | the row's tests; process 1 of a process-id namespace; the verdict is its word | starter |
| response | `response` | the response's code; answers the tester's requests | tester, before that has read the tests |
| case | `case_runs` | the response's code, with one input or one call | response, which then runs none of it itself |

`link` is what tester and response say to each other, `plain_data` how they write it, `remote_objects` what stands in
one process for an object of the other, and what can be done with it. `isolation` holds a process down; it uses
`visible_files` (which has the packages of the job, too) and `kernel`. `script_tests` runs tests that are Python and
counts them, with what `counted_text` adds to their text. `verdict` has what a reward says of a response.

The modules below the worker run without this package's parents (`python -I -S`, no site-packages), so they import each
other, the standard library and the packages that the job states only.
"""
