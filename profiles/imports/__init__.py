"""Imported tables: public measurements that laws are fitted to, and users' logs of responses and rewards."""
