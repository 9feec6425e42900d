"""The parties of a weight transfer as plain processes, without Ray and without vLLM.

    python -m benchmarks.weight_sync --shaped [--json]

The processes run the executor's own parts: `Sender` in trainer ranks, `NodeReceiver` on nodes of engines,
`BucketReader` in engine ranks, one store. `shaped.py` runs them in network namespaces with a slow link between pools.
"""
