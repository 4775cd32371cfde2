//! `leasehold dev`: all parts in one process on a private PostgreSQL cluster.
