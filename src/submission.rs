//! Checks what a submitter asks for, before anything is written.
