//! The only place where adapters meet actors.
