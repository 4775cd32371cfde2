//! Every step, every lost answer and every exit over the scripted engine, the memory store and paused time.

pub(super) mod bed;
