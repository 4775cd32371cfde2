//! `leasehold node`: registers a Docker engine as a runtime node and keeps it fresh.
