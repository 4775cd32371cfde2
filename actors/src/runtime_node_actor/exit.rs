//! Whose exit is it? A table, and nothing but a table.
//!
//! An exit is the program's own only if nobody marked the container, it is no SIGKILL without evidence of
//! memory, and the engine was well all the time and saw it happen. Everything else is SYSTEM: the program is not
//! to blame.

use crate::{
    domain::{Failure, FailureKind},
    ports::{ContainerState, ContainerStatus},
    work::WorkOutcome,
};

/// What a killed process's code is.
const SIGKILL: i32 = 128 + 9;

/// How a container's run was seen to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Its last status.
    pub status: ContainerStatus,
    /// The engine was gone, or restarted, at some time when the exit may have happened.
    pub outage: bool,
}

/// What an exit means.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// What to report.
    pub outcome: WorkOutcome,
    /// Something that people should know besides.
    pub remark: Option<String>,
}

/// Decides by status, mark and outage.
#[must_use]
pub fn verdict(exit: &Exit) -> Verdict {
    let (code, oom_killed, error) = match &exit.status.state {
        ContainerState::Exited { code, oom_killed, error } => (*code, *oom_killed, error.as_str()),
        state @ (ContainerState::Created | ContainerState::Running { .. } | ContainerState::Dead) => {
            return system("engine_lost", format!("the engine says that the container is {state:?}"));
        }
    };
    if exit.outage || !exit.status.witnessed {
        return system(
            "engine_lost",
            format!("the engine was down or restarted when the container ended (code {code})"),
        );
    }
    if exit.status.name.ends_with(".stopped") {
        return system("stopped", format!("Leasehold stopped the container from elsewhere (code {code})"));
    }
    match code {
        SIGKILL if oom_killed => {
            let failure = Failure::new(FailureKind::User, "oom", "killed for using more memory than it may");
            failed(failure.with_exit_code(code))
        }
        SIGKILL => system("killed", "somebody killed the container (SIGKILL, and no lack of memory)"),
        0 => Verdict {
            outcome: WorkOutcome::Completed { exit_code: Some(0), output: None },
            remark: oom_killed.then(|| {
                "a process inside the container was killed for lack of memory, but the program ended with 0"
                    .to_owned()
            }),
        },
        code => {
            let mut message = described(code);
            if oom_killed {
                message.push_str("; a process inside the container was killed for lack of memory");
            }
            if !error.is_empty() {
                message.push_str(": ");
                message.push_str(error);
            }
            let failure = Failure::new(FailureKind::User, code.to_string(), message);
            failed(failure.with_exit_code(code))
        }
    }
}

fn failed(failure: Failure) -> Verdict {
    Verdict { outcome: WorkOutcome::Failed(failure), remark: None }
}

fn system(code: &str, message: impl Into<String>) -> Verdict {
    failed(Failure::new(FailureKind::System, code, message))
}

/// An exit code in words; one above 128 is usually the signal that ended the program.
fn described(code: i32) -> String {
    match (code, signal_name(code - 128)) {
        (126, _) => "exit code 126: the command cannot be invoked".to_owned(),
        (127, _) => "exit code 127: the command was not found".to_owned(),
        (code, Some(name)) => format!("exit code {code}: ended by {name}"),
        (code, None) => format!("exit code {code}"),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ContainerId;

    fn exit(code: i32, oom_killed: bool, name: &str, outage: bool) -> Exit {
        let state = ContainerState::Exited { code, oom_killed, error: String::new() };
        let status = ContainerStatus {
            id: ContainerId::new("c1").expect("a plain name"),
            name: name.to_owned(),
            state,
            labels: Vec::new(),
            started_at: None,
            finished_at: None,
            witnessed: true,
        };
        Exit { status, outage }
    }

    fn told(exit: &Exit) -> (String, String) {
        match verdict(exit).outcome {
            WorkOutcome::Completed { exit_code, .. } => ("COMPLETED".to_owned(), format!("{exit_code:?}")),
            WorkOutcome::Failed(failure) => (failure.kind.to_string(), failure.code),
            other => panic!("no exit comes to {other:?}"),
        }
    }

    /// DK-09, DK-37: every combination that the rules tell apart.
    #[test]
    fn exits_are_told_apart() {
        for (code, oom, name, outage, kind, expected) in [
            (0, false, "n", false, "COMPLETED", "Some(0)"),
            (1, false, "n", false, "USER", "1"),
            (3, false, "n", false, "USER", "3"),
            (125, false, "n", false, "USER", "125"),
            (126, false, "n", false, "USER", "126"),
            (127, false, "n", false, "USER", "127"),
            (139, false, "n", false, "USER", "139"),
            (143, false, "n", false, "USER", "143"),
            (255, false, "n", false, "USER", "255"),
            // Memory: only with evidence, and only when the main process was hit.
            (137, true, "n", false, "USER", "oom"),
            (0, true, "n", false, "COMPLETED", "Some(0)"),
            (1, true, "n", false, "USER", "1"),
            // Not the program's own.
            (137, false, "n", false, "SYSTEM", "killed"),
            (0, false, "n.stopped", false, "SYSTEM", "stopped"),
            (137, true, "n.stopped", false, "SYSTEM", "stopped"),
            (0, false, "n", true, "SYSTEM", "engine_lost"),
            (3, false, "n", true, "SYSTEM", "engine_lost"),
            (137, true, "n", true, "SYSTEM", "engine_lost"),
            (137, false, "n.stopped", true, "SYSTEM", "engine_lost"),
        ] {
            let exit = exit(code, oom, name, outage);
            assert_eq!(told(&exit), (kind.to_owned(), expected.to_owned()), "{exit:?}");
        }
    }

    /// Found by a recovery: nobody watched, and the engine was restarted since.
    #[test]
    fn an_exit_that_its_engine_has_not_seen_is_the_engine_s() {
        for (code, oom, name) in
            [(0, false, "n"), (3, false, "n"), (137, true, "n"), (143, false, "n.stopped")]
        {
            let mut exit = exit(code, oom, name, false);
            exit.status.witnessed = false;
            assert_eq!(told(&exit), ("SYSTEM".to_owned(), "engine_lost".to_owned()), "{exit:?}");
        }
    }

    #[test]
    fn every_code_of_the_program_is_kept() {
        for code in (1..256).filter(|code| *code != 137) {
            let WorkOutcome::Failed(failure) = verdict(&exit(code, false, "n", false)).outcome else {
                panic!("{code} is no success")
            };
            assert_eq!((failure.kind, failure.exit_code), (FailureKind::User, Some(code)));
            assert_eq!(failure.code, code.to_string());
        }
    }

    #[test]
    fn signals_are_named() {
        for (code, word) in [(129, "SIGHUP"), (134, "SIGABRT"), (139, "SIGSEGV"), (141, "SIGPIPE")] {
            let WorkOutcome::Failed(failure) = verdict(&exit(code, false, "n", false)).outcome else {
                panic!("{code} is no success")
            };
            assert!(failure.message.contains(word), "{}", failure.message);
        }
    }

    #[test]
    fn a_lack_of_memory_beside_a_success_is_remarked() {
        assert!(verdict(&exit(0, true, "n", false)).remark.is_some());
        assert_eq!(verdict(&exit(0, false, "n", false)).remark, None);
    }

    #[test]
    fn what_has_not_exited_is_no_exit() {
        for state in
            [ContainerState::Created, ContainerState::Running { paused: false }, ContainerState::Dead]
        {
            let mut exit = exit(0, false, "n", false);
            exit.status.state = state;
            assert_eq!(told(&exit), ("SYSTEM".to_owned(), "engine_lost".to_owned()));
        }
    }
}
