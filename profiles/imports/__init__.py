"""Tables of others: public measurements that laws are fitted to, and users' logs of responses and rewards."""
