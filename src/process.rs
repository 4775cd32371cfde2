//! Programs that must not outlive us, whatever happens to us.

use std::{io, os::unix::process::CommandExt as _, process::Command};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Has the kernel send `signal` to the program when we die, even by SIGKILL, and puts it into a process group of its
/// own, so that a Ctrl-C on our terminal reaches only us and the group can be ended as one.
///
/// Linux ties the signal to the *thread* that spawns: spawn from one that lives as long as the process.
pub(crate) fn bind_to_us(command: &mut Command, signal: Signal) {
    let parent = rustix::process::getpid();
    command.process_group(0);
    #[expect(unsafe_code, reason = "between fork and exec only async-signal-safe system calls are made")]
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal))?;
            // We may have died between the fork and the call above.
            if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
        });
    }
}
