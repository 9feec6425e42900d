"""One round: the machines that decide, event by event, what is issued, scored, aborted, trained and deferred."""
