"""slime and vime: a rollout function and a data source that run a plan's rounds."""
