//! What an embedding program submits with.
