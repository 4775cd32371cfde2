//! `leasehold bench`: measures the lease cycle against any database.
