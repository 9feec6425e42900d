"""Where weights lie for those who load them: slots of two buckets, in memory that a writer and readers share."""
